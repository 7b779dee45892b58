//! Compares VPNs and Vouchsafe: starts each in network namespaces, measures it and tries its security, and counts the
//! administrator's work. From the results it makes a ranking, advice and a report.
//!
//! `vouchsafe-compare` is the program; docs/compare.md describes the method and how to add a solution.

pub mod advise;
pub mod budget;
pub mod claims;
pub mod driver;
pub mod drivers;
pub mod measure;
pub mod papers;
pub mod quantity;
pub mod rank;
pub mod record;
pub mod report;
pub mod results;
pub mod run;
pub mod scene;
pub mod secrecy;
pub mod site;
pub mod stats;
pub mod study;
pub mod truths;
pub mod watchdog;
pub mod workshop;
