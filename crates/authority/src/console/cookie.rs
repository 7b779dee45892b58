//! The console's cookies. Their prefix makes browsers take them from this host over TLS only, never from a subdomain.
//! None is readable for script; none is sent along with what other sites make a browser fetch or post.

use axum::http::header::{COOKIE, SET_COOKIE};
use axum::http::{HeaderMap, HeaderValue};
use zeroize::Zeroizing;

/// A cookie's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cookie {
    /// What a session is known by.
    Session,
    /// What a browser is known by until somebody logs in with it.
    Visit,
    /// Which login with the identity provider the browser is away for.
    Away,
}

impl Cookie {
    const fn name(self) -> &'static str {
        match self {
            Self::Session => "__Host-vouchsafe",
            Self::Visit => "__Host-vouchsafe-visit",
            Self::Away => "__Host-vouchsafe-away",
        }
    }

    /// The value that a request brings: hex digits, or none.
    pub fn read(self, headers: &HeaderMap) -> Option<Zeroizing<String>> {
        let all = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()).flat_map(|all| all.split(';'));
        let mut own = all.filter_map(|pair| pair.trim().split_once('=')).filter(|(name, _)| *name == self.name());
        let (_, value) = own.next()?;
        let is_ours = (1..=128).contains(&value.len()) && value.bytes().all(|byte| byte.is_ascii_hexdigit());
        // Two of one name can't both be ours.
        (is_ours && own.next().is_none()).then(|| Zeroizing::new(value.to_owned()))
    }

    /// Has the browser keep hex digits for so many seconds.
    ///
    /// `Lax`, not `Strict`: whoever comes back from the identity provider, or by a link in a message, is still logged in.
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

    /// Has the browser forget it.
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
