//! The agent's rows.
