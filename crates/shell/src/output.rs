//! Macros that replace the standard library's `print!` and `println!`. The reader of standard output can close it at
//! any time, as `head` does. The standard library's macros then panic, but these macros end the process without a
//! message. The module does not restore the default action of `SIGPIPE`, because the process would then also end when a
//! network peer closes a connection.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Writes `text` to standard output. The macros of this module call this function. If writing fails, ends the process:
/// with exit code 0 if the reader has closed the pipe, otherwise with an error message and exit code 2.
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
