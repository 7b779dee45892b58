//! Benches that consist of parts, which the command line can choose.

use std::fmt::Display;

use crate::Figures;

/// A part of a bench: its name on the command line, and the function that measures it.
pub type Part<E> = (&'static str, fn(&mut Figures) -> Result<(), E>);

/// Runs the parts that the command line names or, if it names none, all parts except `only_named`. Prints their figures
/// and ends the process, with exit code 2 if a part failed. The other parts' figures are printed in any case.
pub fn run_parts<E: Display>(parts: &[Part<E>], only_named: &[&str]) -> ! {
    let mut figures = Figures::default();
    let mut failed = false;
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| match wanted.is_empty() {
        true => !only_named.contains(&name),
        false => wanted.iter().any(|word| word == name),
    };
    for (name, measure) in parts.iter().filter(|(name, _)| is_wanted(name)) {
        eprintln!("bench: {name}");
        if let Err(error) = measure(&mut figures) {
            // The alternate form of `anyhow` shows the causes, too.
            eprintln!("bench: {name}: {error:#}");
            failed = true;
        }
    }
    figures.print();
    std::process::exit(if failed { 2 } else { 0 })
}
