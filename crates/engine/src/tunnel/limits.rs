//! Limits on how much of a verifier's resources the tunnels can use.

/// Limits on the resources of a responder.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of tunnels, including those whose handshake the initiator has not confirmed.
    pub tunnels: usize,
    /// Maximum number of tunnels of an account.
    pub of_account: u32,
    /// Maximum number of initiation tags that the responder remembers to detect replays.
    pub recent: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { tunnels: 65_536, of_account: 64, recent: 262_144 }
    }
}
