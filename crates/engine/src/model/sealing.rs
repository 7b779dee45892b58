//! A rule's demands for the packets of a flow: their treatment in a sealed tunnel (wire.md §9), its suites, re-keying
//! and compression. A demand is a minimum: a sender is allowed to ask for more, but never for less.

use wire::map::Steered;
use wire::seal::{self, Suite, Suites};

/// Treatment of a flow's packets, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Treatment {
    /// The packets are allowed to travel outside of the tunnel.
    #[default]
    None,
    /// The packets travel in the tunnel, and their receiver detects changes. The packets are possibly not encrypted.
    Authenticate,
    /// The packets travel in the tunnel, encrypted.
    Encrypt,
}

impl Treatment {
    /// Every treatment, the weakest first.
    pub const ALL: [Self; 3] = [Self::None, Self::Authenticate, Self::Encrypt];

    /// Returns the treatment's name in policies, metrics and documents.
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

/// Whether blocks of packets are compressed before they are sealed. Compression reveals something about the content. If
/// an attacker chooses a part of a block, the length of the compressed block shows whether the chosen text also occurs
/// elsewhere in the block (CRIME). So compression is a choice about the data, not a degree of protection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compress {
    /// Blocks are not compressed.
    #[default]
    Never,
    /// Blocks are compressed if a sample of the data becomes smaller.
    Auto,
    /// Every block is compressed. A block that does not become shorter is sent uncompressed.
    Always,
}

impl Compress {
    /// Every choice, the default first.
    pub const ALL: [Self; 3] = [Self::Never, Self::Auto, Self::Always];

    /// Returns the name of the choice in policies and documents.
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

/// A rule's demand for the packets of a flow. If the treatment is [`Treatment::None`], the other fields have their
/// defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sealing {
    /// The weakest treatment that the packets are allowed to have.
    pub treatment: Treatment,
    /// Whether blocks are compressed; `None` if the rule leaves this to the sender. The sender's default is not to
    /// compress.
    pub compress: Option<Compress>,
    /// The suites that are allowed to seal the packets.
    pub suites: Suites,
    /// Whether the tunnel's keys come from a key exchange. If so, somebody who later steals the grant's key can't
    /// compute them.
    pub forward_secrecy: bool,
    /// The age, in seconds, at which a phase of the tunnel is re-keyed.
    pub rekey: u32,
}

impl Sealing {
    /// Default for [`Sealing::rekey`], in seconds (wire.md §9.10).
    pub const REKEY: u32 = 120;
    /// The smallest and the largest [`Sealing::rekey`] that a rule can state, in seconds.
    pub const REKEY_BOUNDS: (u32, u32) = (10, 3600);
    /// The demand that every packet meets, because it requires nothing.
    pub const NONE: Self = Self {
        treatment: Treatment::None,
        compress: None,
        suites: Suites::ALL,
        forward_secrecy: true,
        rekey: Self::REKEY,
    };
    /// The demand that a verifier assumes for a flow whose rule it does not know yet (wire.md §6.11.5): the strongest
    /// treatment.
    pub const UNKNOWN: Self = Self { treatment: Treatment::Encrypt, compress: Some(Compress::Never), ..Self::NONE };

    /// Reads a demand from the names in an authority's message. Leaves out unknown suites. Returns `None` if no suite
    /// is left, or if the treatment or the compression is unknown: an agent or verifier that does not understand a
    /// demand can't meet it.
    pub fn from_names<'n>(
        treatment: &str,
        compress: Option<&str>,
        suites: impl IntoIterator<Item = &'n str>,
        forward_secrecy: bool,
        rekey: u32,
    ) -> Option<Self> {
        // An unknown suite is one that this end can't use, so it is left out.
        let known = |name: &str| Suite::ALL.into_iter().find(|suite| suite.name() == name);
        let suites = suites.into_iter().filter_map(known).fold(Suites::default(), Suites::with);
        let compress = match compress {
            Some(name) => Some(Compress::from_name(name)?),
            None => None,
        };
        suites.iter().next()?;
        Some(Self { treatment: Treatment::from_name(treatment)?, compress, suites, forward_secrecy, rekey })
    }

    /// Reports whether the packets have to travel in a sealed tunnel.
    pub const fn is_sealed(&self) -> bool {
        !matches!(self.treatment, Treatment::None)
    }

    /// Reports whether a record of this treatment and suite meets the demand.
    pub fn allows(&self, treatment: seal::Treatment, suite: Suite) -> bool {
        Treatment::from(treatment) >= self.treatment && self.suites.has(suite)
    }

    /// Reports whether every packet that meets this demand also meets `other`.
    pub fn meets(&self, other: &Self) -> bool {
        self.treatment >= other.treatment
            && (!other.is_sealed()
                || self.suites.and(Suites::ALL).and(other.suites) == self.suites.and(Suites::ALL)
                    && (self.forward_secrecy || !other.forward_secrecy)
                    && self.rekey <= other.rekey
                    && (other.compress.is_none() || self.compress == other.compress))
    }

    /// Returns this demand, made stricter where a sender's `wish` is stricter. Ignores the parts of the wish that are
    /// weaker than the demand, and a wish for suites of which the demand allows none.
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

    /// Describes the demand in words, such as `encrypt, compress auto, suites aes-256-gcm`. Leaves out defaults.
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

/// A sender's wish for more than the rule demands. It comes from the agent's configuration, a command or the agent's
/// socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The weakest treatment that the sender accepts.
    pub treatment: Treatment,
    /// The compression that the sender wishes, which counts only if the rule leaves compression to the sender; `None`
    /// for no wish.
    pub compress: Option<Compress>,
    /// The suites that the sender accepts; `None` for any.
    pub suites: Option<Suites>,
    /// Whether to use a key exchange even if the rule does not demand it.
    pub forward_secrecy: bool,
    /// The age, in seconds, at which a phase is re-keyed; `None` if the rule decides.
    pub rekey: Option<u32>,
}

impl Wish {
    /// Reads a list of words such as `encrypt,compress`, in the form of the command line: a treatment, `compress`,
    /// `compress-always`, and names of suites.
    ///
    /// # Errors
    ///
    /// Returns the word that is unknown, or the second of two treatments.
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
        // Compression and suites exist in a tunnel only.
        if !treated && (wish.compress.is_some() || wish.suites.is_some()) {
            wish.treatment = Treatment::Encrypt;
        }
        Ok(wish)
    }

    /// Returns the wish in the form of the kernel's tables. This form leaves out suites, forward secrecy and re-keying.
    pub fn bits(&self) -> u32 {
        let compress = match self.compress {
            None | Some(Compress::Never) => 0,
            Some(Compress::Auto) => Steered::COMPRESS,
            Some(Compress::Always) => Steered::COMPRESS_ALWAYS,
        };
        self.treatment as u32 | compress
    }

    /// Reads a wish from the kernel's tables. If the bits combine the wishes of several senders, the strongest wish
    /// counts.
    pub fn from_bits(bits: u32) -> Self {
        let treatment = match bits & Steered::TREATMENT {
            0 => Treatment::None,
            1 => Treatment::Authenticate,
            _ => Treatment::Encrypt,
        };
        let compress = match bits {
            _ if bits & Steered::COMPRESS_ALWAYS != 0 => Some(Compress::Always),
            _ if bits & Steered::COMPRESS != 0 => Some(Compress::Auto),
            _ => None,
        };
        Self { treatment, compress, ..Self::default() }
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
    fn a_wish_comes_back_from_the_kernel_s_tables() {
        for words in ["none", "authenticate", "encrypt", "encrypt,compress", "authenticate,compress-always"] {
            assert_eq!(Wish::from_bits(wish(words).bits()), wish(words), "{words}");
        }
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
