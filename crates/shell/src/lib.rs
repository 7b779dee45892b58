//! IO functions that the programs (authority, agent, verifier and others) share. They cover lists for users, standard
//! output, the daemons' folders, clocks, signals, control sockets, a page of metrics, HTTP and huge pages.
//!
//! The programs determine the contents of these lists, files, requests and pages.
//!
//! ```
//! use shell::table::{Table, count, span};
//!
//! let grants = [vec!["git".to_owned(), span(90)], vec!["wiki".to_owned(), span(7200)]];
//! println!("{}", count(grants.len(), "grant"));
//! let table = Table::new(&["RECEIVER", "ENDS IN"], grants.into_iter());
//! assert_eq!(table.to_string(), "RECEIVER  ENDS IN\ngit       90 s\nwiki      2 h\n");
//! ```
#![deny(unsafe_code)]

pub mod clock;
pub mod control;
pub mod folder;
#[cfg(feature = "metrics")]
pub mod http;
pub mod lines;
#[cfg(target_os = "linux")]
pub mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod output;
pub mod signals;
pub mod table;
