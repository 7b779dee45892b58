//! The console's cookies. The prefix of their names makes browsers accept them only from this host over TLS, never from
//! a subdomain. Scripts cannot read the cookies. Browsers do not send them with requests that pages of other sites
//! cause by embedding content or posting forms.

use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue};
use zeroize::Zeroizing;

/// The kinds of cookies that the console sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cookie {
    /// Identifies a session.
    Session,
    /// Identifies a browser until a person logs in with it.
    Visit,
    /// Identifies the login for which the console sent the browser to the identity provider.
    Away,
    /// Contains the bearer token of the device on which the browser runs.
    Device,
}

impl Cookie {
    const fn name(self) -> &'static str {
        match self {
            Self::Session => "__Host-vouchsafe",
            Self::Visit => "__Host-vouchsafe-visit",
            Self::Away => "__Host-vouchsafe-away",
            Self::Device => "__Host-vouchsafe-device",
        }
    }

    /// Returns the cookie's value from the headers of a request. Returns `None` unless the cookie occurs exactly once
    /// and consists of 1 to 128 hex digits.
    pub fn read(self, headers: &HeaderMap) -> Option<Zeroizing<String>> {
        let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(';'));
        let mut own = all.filter_map(|pair| pair.trim().split_once('=')).filter(|(name, _)| *name == self.name());
        let (_, value) = own.next()?;
        let is_ours = (1..=128).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_hexdigit());
        // If there are two cookies with the same name, at least one was not set by the authority.
        (is_ours && own.next().is_none()).then(|| Zeroizing::new(value.to_owned()))
    }

    /// Sets the cookie to `value`, a string of hex digits, for `seconds` seconds. Adds the corresponding header to the
    /// `headers` of a response.
    ///
    /// The cookie is `Lax`, not `Strict`, so that a person who returns from the identity provider, or follows a link in
    /// a message, is still logged in.
    pub fn set(self, headers: &mut HeaderMap, value: &str, seconds: u32) {
        let text = Zeroizing::new(format!(
            "{}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Lax",
            self.name()
        ));
        if let Ok(mut value) = HeaderValue::from_str(&text) {
            value.set_sensitive(true);
            headers.append(SET_COOKIE, value);
        }
    }

    /// Deletes the cookie: adds the corresponding header to the `headers` of a response.
    pub fn forget(self, headers: &mut HeaderMap) {
        self.set(headers, "", 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_str(text).unwrap());
        Cookie::Session.read(&headers).map(|value| value.to_string())
    }

    #[test]
    fn only_our_own_form_is_read() {
        assert_eq!(read("a=b; __Host-vouchsafe=00ff; c=d").as_deref(), Some("00ff"));
        for wrong in ["__Host-vouchsafe=", "__Host-vouchsafe=xyz", "vouchsafe=00", "__Host-vouchsafe-visit=00"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(read("__Host-vouchsafe=00; __Host-vouchsafe=11"), None);
    }
}
