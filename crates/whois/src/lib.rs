//! Tells an application which person is behind a connection. `docs/identity.md` describes the settings of the verifier.
//!
//! If the verifier is on the application's host, the application asks it, right after it has accepted the connection:
//!
//! ```no_run
//! use std::net::TcpListener;
//! use whois::Identity;
//!
//! let listener = TcpListener::bind("192.0.2.20:8080")?;
//! let (stream, _) = listener.accept()?;
//! match Identity::of(&stream)? {
//!     Some(who) => println!("{} from {}", who.person, who.device),
//!     None => println!("a stranger"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! If the verifier is a gateway with `proxy_protocol`, the gateway names the person in a header before the connection's
//! first byte:
//!
//! ```no_run
//! # use std::net::{IpAddr, TcpListener};
//! use whois::Relayed;
//!
//! # let listener = TcpListener::bind("192.0.2.20:8080")?;
//! # let (stream, _) = listener.accept()?;
//! let gateways: [IpAddr; 1] = ["192.0.2.254".parse()?];
//! let relayed = Relayed::from_gateway(&stream, &gateways)?;
//! println!("{} is {:?}", relayed.client, relayed.identity.map(|who| who.person));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! All calls block, each for a limited time. After an error, the application does not know the person. It has to treat
//! the connection like a stranger's connection, or close it.

mod answer;
mod error;
mod identity;
mod relayed;
mod verifier;

pub use answer::Answer;
pub use error::Error;
pub use identity::Identity;
pub use relayed::Relayed;
pub use verifier::{Connection, Misconduct, SOCKET, Verifier};

impl Identity {
    /// Asks the verifier on this host who is behind a connection that the application has just accepted. Uses the
    /// socket `$VOUCHSAFE_IDENTITY_SOCKET`, or [`SOCKET`] if the variable is not set. Returns `None` if no grant
    /// admitted the connection.
    ///
    /// An application that asks later has to keep a [`Connection`], which contains the time at which it was accepted.
    ///
    /// # Errors
    ///
    /// Fails if the verifier does not answer, or refuses to.
    pub fn of(stream: &std::net::TcpStream) -> Result<Option<Self>, Error> {
        Verifier::default().who(&Connection::accepted(stream)?)
    }
}
