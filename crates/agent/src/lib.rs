//! The agent: IO shell around the engine and the kernel programs.
