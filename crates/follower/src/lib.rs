//! Follows an authority for a *role*: a program that is enrolled as a verifier. This includes enrolment, the state from
//! the last run, synchronisation, the event stream, back-off, health and reports.
//!
//! A role implements [`Role`], which carries out states and events. Its main loop waits for [`Follower::next`] and for
//! its own events, and passes the news to [`Follower::handle`]:
//!
//! ```no_run
//! use follower::{Follower, Role, Start, State};
//!
//! struct Counting(u32);
//!
//! impl Role for Counting {
//!     const NAME: &'static str = "counter";
//!
//!     fn apply(&mut self, state: &State, _before: &State) -> anyhow::Result<()> {
//!         println!("{} receivers", state.config.receivers.len());
//!         Ok(())
//!     }
//!
//!     fn event(&mut self, _event: api::Event, _state: &mut State) {
//!         self.0 += 1;
//!     }
//! }
//!
//! # async fn run(start: Start) -> anyhow::Result<()> {
//! let mut role = Counting(0);
//! let mut follower = Follower::start(start)?;
//! loop {
//!     let news = follower.next().await;
//!     follower.handle(news, &mut role);
//! }
//! # }
//! ```
#![forbid(unsafe_code)]

mod acknowledger;
mod backoff;
mod enrolment;
mod follow;
mod report;
mod state;

pub use acknowledger::Acknowledger;
pub use backoff::Backoff;
pub use enrolment::{Enrolment, enrol};
pub use follow::{Follower, Health, News, Role, Start};
pub use report::report;
pub use state::State;
