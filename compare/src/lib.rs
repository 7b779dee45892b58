//! Compares VPNs and Vouchsafe. Starts each solution in network namespaces, measures its speed, tries its security, and
//! counts the administrator's steps. From the results it makes a ranking, advice and a report.
//!
//! The program is `vouchsafe-compare`. docs/compare.md describes the method, and how to add a solution.

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
