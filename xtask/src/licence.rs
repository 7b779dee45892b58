//! Evaluates SPDX licence expressions against the licences that Vouchsafe may be shipped with.

/// Permissive licences that are compatible with Apache-2.0 and require no more than attribution.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Zlib",
];

/// Reports whether some choice among the alternatives of `expression` uses allowed licences only. `AND` binds tighter
/// than `OR`, and the old `/` means `OR`. An expression that does not parse is not allowed.
pub fn is_allowed(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    any(&mut rest) == Some(true) && rest.is_empty()
}

fn any(words: &mut &[&str]) -> Option<bool> {
    let mut allowed = all(words)?;
    while take(words, "OR") {
        allowed |= all(words)?;
    }
    Some(allowed)
}

fn all(words: &mut &[&str]) -> Option<bool> {
    let mut allowed = one(words)?;
    while take(words, "AND") {
        allowed &= one(words)?;
    }
    Some(allowed)
}

fn one(words: &mut &[&str]) -> Option<bool> {
    if take(words, "(") {
        let allowed = any(words)?;
        return take(words, ")").then_some(allowed);
    }
    let (licence, rest) = words.split_first()?;
    *words = rest;
    if take(words, "WITH") {
        // An SPDX exception only grants additional rights.
        *words = words.split_first()?.1;
    }
    Some(ALLOWED.contains(licence))
}

fn take(words: &mut &[&str], word: &str) -> bool {
    let is_next = words.first() == Some(&word);
    if is_next {
        *words = &words[1..];
    }
    is_next
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn one_allowed_choice_is_enough() {
        for expression in
            ["MIT", "MIT/Apache-2.0", "LGPL-2.1-only OR BSD-2-Clause", "Apache-2.0 WITH LLVM-exception OR GPL-2.0"]
        {
            assert!(is_allowed(expression), "{expression}");
        }
    }

    #[test]
    fn every_part_of_a_conjunction_must_be_allowed() {
        assert!(is_allowed("(MIT OR GPL-3.0) AND Unicode-3.0"));
        assert!(!is_allowed("MIT AND GPL-3.0"));
        assert!(!is_allowed("MIT AND (GPL-3.0 OR AGPL-3.0)"));
    }

    #[test]
    fn what_does_not_parse_is_not_allowed() {
        for expression in ["", "MIT OR", "(MIT", "MIT Apache-2.0", "MIT)", "WITH"] {
            assert!(!is_allowed(expression), "{expression}");
        }
    }
}
