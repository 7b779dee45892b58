//! What the service manager hears: that the programs are attached, in a line how the verifier stands, and that it lives.

use crate::protection::Protection;
use sd_notify::NotifyState;

/// Says that protection is on. Units that are ordered after this one, such as the network's, start now.
pub(super) fn ready(protection: &Protection) {
    tell(&[NotifyState::Ready, NotifyState::Status(&line(protection, None))]);
}

/// Says that the daemon lives, and how it stands if that has changed since `told`.
pub(super) fn alive(protection: &Protection, connected: bool, told: &mut String) {
    if sd_notify::watchdog_enabled().is_some() {
        tell(&[NotifyState::Watchdog]);
    }
    let line = line(protection, Some(connected));
    if *told != line {
        tell(&[NotifyState::Status(&line)]);
        *told = line;
    }
}

/// Says that the daemon ends.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn line(protection: &Protection, connected: Option<bool>) -> String {
    let interfaces: Vec<_> =
        protection.interfaces().into_iter().map(|one| format!("{} ({})", one.name, one.hook)).collect();
    let authority = match connected {
        None => "the authority has not been asked yet",
        Some(true) => "connected to the authority",
        Some(false) => "no connection to the authority",
    };
    format!("Attached to {}; {authority}", interfaces.join(", "))
}

fn tell(state: &[NotifyState<'_>]) {
    // Without a service manager this does nothing.
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot tell the service manager: {error}");
    }
}
