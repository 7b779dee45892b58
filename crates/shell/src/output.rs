//! Standard output that its reader may close at any time, as `head` does: then the process ends silently, instead of
//! with the panic of the standard library's macros, whose names these macros have. `SIGPIPE` is left alone: it would
//! also end the process if a peer hangs up.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes to standard output; ends the process if that is impossible. A closed pipe is no failure. Used by the macros.
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
