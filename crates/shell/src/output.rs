//! Standard output that may be closed while it is written to, as by `head`: then the process ends without a word, instead
//! of with the panic of the standard library's macros, whose names these have. `SIGPIPE` is left alone: it would end us
//! for a peer that hangs up, too.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to standard output; ends the process where that is impossible. A reader that has enough is no failure. For the
/// macros.
pub fn write(text: Arguments<'_>) {
    let Err(error) = std::io::stdout().lock().write_fmt(text) else { return };
    if error.kind() == ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    eprintln!("vouchsafe: cannot write to standard output: {error}");
    std::process::exit(2);
}

/// Prints to standard output.
#[macro_export]
macro_rules! print {
    ($($text:tt)*) => { $crate::output::write(::std::format_args!($($text)*)) };
}

/// Prints a line to standard output.
#[macro_export]
macro_rules! println {
    ($($text:tt)*) => { $crate::output::write(::std::format_args!("{}\n", ::std::format_args!($($text)*))) };
}
