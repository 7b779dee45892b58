//! The `tail` carrier.
