//! The verifier: IO shell around the engine and the kernel programs.
