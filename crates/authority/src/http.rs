//! The HTTPS API: accepts connections within limits, authenticates requests, and answers them.

pub(crate) mod calls;
pub(crate) mod connection_limit;
pub(crate) mod descriptors;
pub(crate) mod downloads;
pub(crate) mod extractors;
pub(crate) mod handlers;
pub(crate) mod key_transfer;
mod listener;
pub(crate) mod openapi;
pub(crate) mod peer;
pub(crate) mod problems;
mod right_clock;
pub(crate) mod server;
pub(crate) mod throttle;
mod tls_stream;
pub(crate) mod turns;
