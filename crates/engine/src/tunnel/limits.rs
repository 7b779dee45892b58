//! How much of a verifier tunnels may take.

/// What a responder allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tunnels, those without a confirmed handshake included.
    pub tunnels: usize,
    /// Of them, those of one account.
    pub of_account: u32,
    /// Tags of initiations that it remembers.
    pub recent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tunnels: 65_536, of_account: 64, recent: 262_144 }
    }
}
