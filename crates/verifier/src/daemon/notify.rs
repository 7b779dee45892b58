//! Notifications to the service manager: ready, a status line, and the watchdog.

use crate::protection::Protection;
use sd_notify::NotifyState;

/// Reports that protection is on. Units ordered after this one, such as the network's, start now.
pub(super) fn ready(protection: &Protection) {
    tell(&[NotifyState::Ready, NotifyState::Status(&line(protection, None))]);
}

/// Feeds the watchdog, and reports the status line if it differs from `told`.
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

/// Reports that the daemon is stopping.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn line(protection: &Protection, connected: Option<bool>) -> String {
    let interfaces: Vec<_> =
        protection.interfaces().into_iter().map(|one| format!("{} ({})", one.name, one.hook)).collect();
    let authority = match connected {
        None => "not yet connected to the authority",
        Some(true) => "connected to the authority",
        Some(false) => "no connection to the authority",
    };
    format!("Attached to {}; {authority}", interfaces.join(", "))
}

fn tell(state: &[NotifyState<'_>]) {
    // A no-op without a service manager.
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
