//! Compares VPNs and Vouchsafe: starts each in network namespaces, measures it beside the others, tries its security,
//! counts the administrator's work, and ranks, advises and reports by what was measured.
//!
//! `vouchsafe-compare` is the program; docs/compare.md describes the method and how to add a solution.

pub mod advise;
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
pub mod site;
pub mod stats;
pub mod truths;
pub mod workshop;
