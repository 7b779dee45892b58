//! Properties that must hold for every input of a decoder. Each function takes arbitrary bytes and panics if a property
//! is violated.
//!
//! The fuzz targets of `fuzz/` call these functions; `tests/corpus.rs` calls them with every file of the committed
//! corpus.

mod asking;
mod carrier;
mod formats;
mod names;
mod people;
mod proofs;
mod sealing;
mod switches;
mod texts;
mod verifying;
mod world;

pub use asking::{ask, asked};
pub use carrier::{journey, queued, reordered, shim, tail};
pub use formats::{grant_header, option, packet, quoted, token};
pub use names::answer;
pub use people::relayed;
pub use proofs::{judged, proof};
pub use sealing::{Unsealed, keys, seal, unsealed};
pub use switches::{GENERATION, openflow};
pub use texts::{api, document, policy};
pub use verifying::{Between, happened, outcomes, verifier};

/// A function that runs a target on an input.
pub type Target = fn(&[u8]);

/// Every target, with the name that its fuzz target and its corpus have.
pub const TARGETS: &[(&str, Target)] = &[
    ("token", token),
    ("grant_header", grant_header),
    ("packet", packet),
    ("quoted", quoted),
    ("tail", tail),
    ("option", option),
    ("shim", shim),
    ("reordered", reordered),
    ("verifier", verifier),
    ("proof", proof),
    ("ask", ask),
    ("seal", seal),
    ("journey", journey),
    ("queued", queued),
    ("openflow", openflow),
    ("answer", answer),
    ("policy", policy),
    ("document", document),
    ("api", api),
    ("relayed", relayed),
];
