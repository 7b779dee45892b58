//! Notifications to the service manager: the verifier is ready, a status line, and signs of life for the watchdog.

use crate::kernel::Kernel;
use sd_notify::NotifyState;

/// Reports that protection is on. The service manager then starts the units that are ordered after this one, such as
/// the network's units.
pub(super) fn ready(kernel: &Kernel) {
    notify(&[NotifyState::Ready, NotifyState::Status(&line(kernel, None))]);
}

/// Sends a sign of life to the watchdog. Reports the status line if it differs from `last_status`.
pub(super) fn alive(kernel: &Kernel, connected: bool, last_status: &mut String) {
    if sd_notify::watchdog_enabled().is_some() {
        notify(&[NotifyState::Watchdog]);
    }
    let line = line(kernel, Some(connected));
    if *last_status != line {
        notify(&[NotifyState::Status(&line)]);
        *last_status = line;
    }
}

/// Reports that the daemon is stopping.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

fn line(kernel: &Kernel, connected: Option<bool>) -> String {
    let interfaces: Vec<_> =
        kernel.interfaces().into_iter().map(|one| format!("{} ({})", one.name, one.hook)).collect();
    let authority = match connected {
        None => "not yet connected to the authority",
        Some(true) => "connected to the authority",
        Some(false) => "no connection to the authority",
    };
    format!("Attached to {}; {authority}", interfaces.join(", "))
}

fn notify(state: &[NotifyState<'_>]) {
    // Without a service manager, this call does nothing.
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
