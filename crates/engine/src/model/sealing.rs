//! Demands of rules for the packets of a flow: their treatment in a sealed tunnel (wire.md §9), its suites, keys and
//! compression. The rule is the minimum: a sender may ask for more, never for less.

use wire::seal::{self, Suite, Suites};

/// Treatment of a flow's packets, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// The packets may travel outside of the tunnel.
    #[default]
    None,
    /// They travel in the tunnel, and changes are detected; their content may be in clear.
    Authenticate,
    /// They travel in the tunnel, encrypted.
    Encrypt,
}

impl Treatment {
    /// Every treatment, the weakest first.
    pub const ALL: [Self; 3] = [Self::None, Self::Authenticate, Self::Encrypt];

    /// Returns the name used in policies, metrics and documents.
    pub const fn name(self) -> &'static str {
        match self.of_records() {
            None => "none",
            Some(treatment) => treatment.name(),
        }
    }

    /// Returns the treatment with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|treatment| treatment.name() == name)
    }

    /// Returns the treatment of the records that carry the packets; `None` if the packets need no tunnel.
    pub const fn of_records(self) -> Option<seal::Treatment> {
        match self {
            Self::None => None,
            Self::Authenticate => Some(seal::Treatment::Authenticate),
            Self::Encrypt => Some(seal::Treatment::Encrypt),
        }
    }
}

impl From<seal::Treatment> for Treatment {
    fn from(treatment: seal::Treatment) -> Self {
        match treatment {
            seal::Treatment::Authenticate => Self::Authenticate,
            seal::Treatment::Encrypt => Self::Encrypt,
        }
    }
}

/// Whether blocks of packets are compressed before they are sealed. Compression leaks: lengths show whether text that an
/// attacker chooses occurs in the same block (CRIME), so it is a choice about the data, not a degree of protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compress {
    /// Not compressed.
    #[default]
    Never,
    /// Compressed where a sample shrinks.
    Auto,
    /// Always tried.
    Always,
}

impl Compress {
    /// Every choice, the default first.
    pub const ALL: [Self; 3] = [Self::Never, Self::Auto, Self::Always];

    /// Returns the name used in policies and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Auto => "auto",
            Self::Always => "always",
        }
    }

    /// Returns the choice with this name, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.name() == name)
    }
}

/// The demand of a rule for the packets of a flow. Without a treatment, the other fields have their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sealing {
    /// The least treatment.
    pub treatment: Treatment,
    /// Compression; `None` if the rule leaves it to the sender, whose default is not to compress.
    pub compress: Option<Compress>,
    /// The suites that may seal the packets.
    pub suites: Suites,
    /// Whether keys come from an exchange that a later theft of the grant's key does not reveal.
    pub forward_secrecy: bool,
    /// The age at which a phase is re-keyed, in seconds.
    pub rekey: u32,
}

impl Sealing {
    /// Default age at which a phase is re-keyed, in seconds (wire.md §9.10).
    pub const REKEY: u32 = 120;
    /// The shortest and the longest age that a rule may state, in seconds.
    pub const REKEY_BOUNDS: (u32, u32) = (10, 3600);
    /// Demands nothing.
    pub const NONE: Self = Self {
        treatment: Treatment::None,
        compress: None,
        suites: Suites::ALL,
        forward_secrecy: true,
        rekey: Self::REKEY,
    };
    /// The demand of a verifier for a flow whose rule it does not know yet (wire.md §6.11.5): the strongest treatment.
    pub const UNKNOWN: Self = Self { treatment: Treatment::Encrypt, compress: Some(Compress::Never), ..Self::NONE };

    /// Reads the names of an authority's message. `None` if one means nothing here: who does not understand a demand
    /// cannot meet it.
    pub fn from_names<'n>(
        treatment: &str,
        compress: Option<&str>,
        suites: impl IntoIterator<Item = &'n str>,
        forward_secrecy: bool,
        rekey: u32,
    ) -> Option<Self> {
        // A suite that is not known here is one that this end cannot use.
        let known = |name: &str| Suite::ALL.into_iter().find(|suite| suite.name() == name);
        let suites = suites.into_iter().filter_map(known).fold(Suites::default(), Suites::with);
        let compress = match compress {
            Some(name) => Some(Compress::from_name(name)?),
            None => None,
        };
        suites.iter().next()?;
        Some(Self { treatment: Treatment::from_name(treatment)?, compress, suites, forward_secrecy, rekey })
    }

    /// Reports whether the packets have to be in the tunnel.
    pub const fn is_sealed(&self) -> bool {
        !matches!(self.treatment, Treatment::None)
    }

    /// Reports whether a record of this treatment and suite meets the demand.
    pub fn allows(&self, treatment: seal::Treatment, suite: Suite) -> bool {
        Treatment::from(treatment) >= self.treatment && self.suites.has(suite)
    }

    /// Reports whether whatever meets this demand meets the other one, too.
    pub fn meets(&self, other: &Self) -> bool {
        self.treatment >= other.treatment
            && (!other.is_sealed()
                || self.suites.and(Suites::ALL).and(other.suites) == self.suites.and(Suites::ALL)
                    && (self.forward_secrecy || !other.forward_secrecy)
                    && self.rekey <= other.rekey
                    && (other.compress.is_none() || self.compress == other.compress))
    }

    /// Returns this demand raised by a sender's wish. Where the wish asks for less, the demand stays.
    #[must_use]
    pub fn raised(&self, wish: &Wish) -> Self {
        let treatment = self.treatment.max(wish.treatment);
        let shared = self.suites.and(wish.suites.unwrap_or(Suites::ALL));
        let rekey = wish.rekey.map_or(self.rekey, |rekey| rekey.max(Self::REKEY_BOUNDS.0).min(self.rekey));
        Self {
            treatment,
            compress: self.compress.or(wish.compress),
            suites: if shared.iter().next().is_some() { shared } else { self.suites },
            forward_secrecy: self.forward_secrecy || wish.forward_secrecy,
            rekey,
        }
    }

    /// Describes the demand, such as `encrypt, compress auto, suites aes-256-gcm`. Defaults are left out.
    pub fn words(&self) -> String {
        let mut text = self.treatment.name().to_owned();
        if let Some(compress) = self.compress {
            text += &format!(", compress {}", compress.name());
        }
        if self.suites.and(Suites::ALL) != Suites::ALL {
            let names: Vec<_> = self.suites.iter().map(Suite::name).collect();
            text += &format!(", suites {}", names.join(" "));
        }
        if self.is_sealed() && !self.forward_secrecy {
            text += ", no forward secrecy";
        }
        if self.rekey != Self::REKEY {
            text += &format!(", rekey {}", crate::document::duration(self.rekey));
        }
        text
    }
}

impl Default for Sealing {
    fn default() -> Self {
        Self::NONE
    }
}

/// The wish of a sender for more than the rule demands, in the agent's configuration, by a command or by its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The least treatment.
    pub treatment: Treatment,
    /// Compression, where the rule leaves it open.
    pub compress: Option<Compress>,
    /// The suites to choose from.
    pub suites: Option<Suites>,
    /// Whether to exchange keys even if the rule does not demand it.
    pub forward_secrecy: bool,
    /// The age at which a phase is re-keyed, in seconds.
    pub rekey: Option<u32>,
}

impl Wish {
    /// Reads a list of words such as `encrypt,compress`, as a command line has it: a treatment, `compress`,
    /// `compress-always`, and names of suites.
    ///
    /// # Errors
    /// Returns the word that means nothing, or the second treatment.
    pub fn from_words(words: &str) -> Result<Self, &str> {
        let mut wish = Self::default();
        let mut treated = false;
        for word in words.split(',').map(str::trim) {
            let suite = Suite::ALL.into_iter().find(|suite| suite.name() == word);
            match (word, Treatment::from_name(word), suite) {
                ("compress", ..) => wish.compress = Some(Compress::Auto),
                ("compress-always", ..) => wish.compress = Some(Compress::Always),
                (_, Some(treatment), _) if !treated => (wish.treatment, treated) = (treatment, true),
                (_, _, Some(suite)) => wish.suites = Some(wish.suites.unwrap_or_default().with(suite)),
                _ => return Err(word),
            }
        }
        // Only a tunnel compresses, and only in a tunnel there are suites.
        if !treated && (wish.compress.is_some() || wish.suites.is_some()) {
            wish.treatment = Treatment::Encrypt;
        }
        Ok(wish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AES: Suites = Suites(0b011);

    fn rule(treatment: Treatment) -> Sealing {
        Sealing { treatment, ..Sealing::NONE }
    }

    fn wish(words: &str) -> Wish {
        Wish::from_words(words).unwrap_or_else(|word| panic!("{word}"))
    }

    #[test]
    fn a_wish_raises_and_never_lowers() {
        for demanded in Treatment::ALL {
            for wished in Treatment::ALL {
                let raised = rule(demanded).raised(&Wish { treatment: wished, ..Wish::default() });
                assert_eq!(raised.treatment, demanded.max(wished));
                assert!(raised.meets(&rule(demanded)));
            }
        }
        let strict = Sealing { suites: AES, rekey: 60, compress: Some(Compress::Never), ..rule(Treatment::Encrypt) };
        let lower = Wish {
            compress: Some(Compress::Always),
            suites: Some(Suites::default().with(Suite::ChaCha20Poly1305)),
            rekey: Some(600),
            ..wish("none")
        };
        assert_eq!(strict.raised(&lower), strict);
        let higher = Wish { suites: Some(Suites(0b110)), rekey: Some(1), ..Wish::default() };
        let raised = strict.raised(&higher);
        assert_eq!((raised.suites, raised.rekey), (Suites(0b010), 10));
        assert!(raised.meets(&strict));
        let fixed = Sealing { forward_secrecy: false, ..strict };
        assert!(fixed.raised(&Wish { forward_secrecy: true, ..Wish::default() }).forward_secrecy);
    }

    #[test]
    fn a_sender_compresses_only_where_the_rule_leaves_it_open() {
        let open = rule(Treatment::Encrypt);
        assert_eq!(open.raised(&wish("compress")).compress, Some(Compress::Auto));
        let never = Sealing { compress: Some(Compress::Never), ..open };
        assert_eq!(never.raised(&wish("compress")).compress, Some(Compress::Never));
    }

    #[test]
    fn a_weaker_record_does_not_meet_a_demand() {
        let demand = Sealing { suites: AES, ..rule(Treatment::Encrypt) };
        let [weak, strong] = seal::Treatment::ALL;
        assert!(demand.allows(strong, Suite::Aes256Gcm));
        assert!(!demand.allows(weak, Suite::Aes256Gcm));
        assert!(!demand.allows(strong, Suite::ChaCha20Poly1305));
        assert!(rule(Treatment::Authenticate).allows(weak, Suite::ChaCha20Poly1305));
        assert!(!Sealing::UNKNOWN.allows(weak, Suite::Aes128Gcm));
    }

    #[test]
    fn demands_compare_by_what_meets_them() {
        let [none, weak, strong] = Treatment::ALL.map(rule);
        assert!(strong.meets(&weak) && weak.meets(&none) && !weak.meets(&strong) && !none.meets(&weak));
        assert!(Sealing { suites: AES, ..strong }.meets(&strong));
        assert!(!strong.meets(&Sealing { suites: AES, ..strong }));
        assert!(!Sealing { forward_secrecy: false, ..strong }.meets(&strong));
        assert!(!Sealing { rekey: 300, ..strong }.meets(&strong));
        assert!(Sealing { rekey: 300, forward_secrecy: false, ..none }.meets(&none));
    }

    #[test]
    fn a_demand_that_is_not_understood_is_none() {
        let read = |treatment, compress, suites: &[&'static str]| {
            Sealing::from_names(treatment, compress, suites.iter().copied(), true, 120)
        };
        assert_eq!(
            read("encrypt", None, &["aes-128-gcm", "aes-256-gcm", "chacha20-poly1305"]),
            Some(rule(Treatment::Encrypt))
        );
        assert_eq!(read("encrypt", None, &["aes-128-gcm", "aes-256-gcm", "rot13"]).map(|read| read.suites), Some(AES));
        assert_eq!(read("veil", None, &["aes-128-gcm"]), None);
        assert_eq!(read("encrypt", Some("sometimes"), &["aes-128-gcm"]), None);
        assert_eq!((read("encrypt", None, &["rot13"]), read("encrypt", None, &[])), (None, None));
    }

    #[test]
    fn words_of_a_command_line_are_read() {
        assert_eq!(wish("encrypt,compress").treatment, Treatment::Encrypt);
        assert_eq!(wish("compress-always"), Wish { compress: Some(Compress::Always), ..wish("encrypt") });
        assert_eq!(wish("authenticate, aes-128-gcm,aes-256-gcm").suites, Some(AES));
        assert_eq!(Wish::from_words("encrypt,authenticate"), Err("authenticate"));
        assert_eq!(Wish::from_words("strong"), Err("strong"));
        assert_eq!(
            Sealing { suites: AES, rekey: 600, ..rule(Treatment::Encrypt) }.words(),
            "encrypt, suites aes-128-gcm aes-256-gcm, rekey 10m"
        );
    }
}
