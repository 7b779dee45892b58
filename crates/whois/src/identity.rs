//! The person behind a connection.

/// The person behind a connection, and the terms on which the connection was admitted. All values come from the
/// authority. They may contain any character. An application that writes them into a log or a header has to encode
/// them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The person, or the service account. Never empty.
    pub person: String,
    /// The device to which the grant was issued.
    pub device: String,
    /// The receiver for which the grant was issued.
    pub receiver: String,
    /// The rule that allowed the grant, in the notation of the authority's audit trail.
    pub rule: String,
    /// The grant's handle. `vouchsafe authority revoke --grant` accepts it.
    pub grant: String,
}
