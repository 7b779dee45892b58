//! The name of a browser in lists of sessions and devices.

use axum::http::header::{HeaderMap, USER_AGENT};

/// Returns the name of a console session in lists, such as `Firefox on Linux`. The names of browser and operating
/// system come from fixed lists, so that the header `User-Agent` cannot inject text.
pub fn browser(headers: &HeaderMap) -> String {
    let said = headers.get(USER_AGENT).and_then(|said| said.to_str().ok()).unwrap_or_default();
    let known =
        |known: &[(&str, &'static str)]| known.iter().find(|(sign, _)| said.contains(sign)).map(|(_, name)| *name);
    let browsers = [("Firefox/", "Firefox"), ("Edg/", "Edge"), ("Chrome/", "Chrome"), ("Safari/", "Safari")];
    let systems = [
        ("Android", "Android"),
        ("iPhone", "iPhone"),
        ("iPad", "iPad"),
        ("Windows", "Windows"),
        ("Mac OS", "macOS"),
        ("Linux", "Linux"),
    ];
    match (known(&browsers), known(&systems)) {
        (Some(browser), Some(system)) => format!("{browser} on {system}"),
        (Some(name), None) | (None, Some(name)) => name.to_owned(),
        (None, None) => "a browser".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_browser_has_a_name_of_ours() {
        let name = |said: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(USER_AGENT, said.parse().unwrap());
            browser(&headers)
        };
        let chrome =
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36";
        assert_eq!(name(chrome), "Chrome on Linux");
        assert_eq!(name("<script>alert(1)</script>"), "a browser");
        assert_eq!(browser(&HeaderMap::new()), "a browser");
    }
}
