//! Token carriers (wire.md §4).

/// A way for a token to travel in a packet. The number of each carrier is a single bit, so that a verifier's settings
/// can combine several carriers in one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Carrier {
    /// The token is appended to the payload of the first packet.
    #[default]
    Tail = 1,
    /// The token is in an option of an IPv4 header, which is wrapped in another IPv4 header.
    Shim = 2,
    /// The token is in the first bytes of a TCP stream, which are the whole payload of the SYN. A process without
    /// privileges can send such a token.
    Stream = 4,
    /// The token is the whole payload of a SYN, which had no data before. The sender adds a TCP Fast Open option to the
    /// SYN's header, because some firewalls drop data in a SYN without this option.
    FastOpen = 8,
    /// The token is appended to a SYN, whose header is then reordered so that it forms a UDP header. All segments of
    /// the connection travel in this form, because some firewalls let only UDP through.
    TcpInUdp = 16,
}

impl Carrier {
    /// Every carrier.
    pub const ALL: [Self; 5] = [Self::Tail, Self::Shim, Self::Stream, Self::FastOpen, Self::TcpInUdp];

    /// Returns the name used in configuration and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tail => "tail",
            Self::Shim => "shim",
            Self::Stream => "stream",
            Self::FastOpen => "fast_open",
            Self::TcpInUdp => "tcp_in_udp",
        }
    }

    /// Returns the carrier with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|carrier| carrier.name() == name)
    }

    /// Returns the carrier with this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|carrier| *carrier as u8 == number)
    }
}
