//! Weights for four kinds of users.

use anyhow::{Context, Result};

use super::Weights;

/// A preset: its name, the users for whom it is made, and its weights as a TOML document.
pub struct Preset {
    /// Name on the command line.
    pub name: &'static str,
    /// The users for whom the preset is made.
    pub title: &'static str,
    /// The weights, as a TOML document that [`Weights::read`] reads.
    pub text: &'static str,
}

/// All presets.
pub const ALL: [Preset; 4] = [
    Preset {
        name: "home",
        title: "a person who reaches a few machines at home from anywhere",
        text: "must = [\"passes-nat\"]\n[weights]\nthroughput = 3\nlatency = 2\nresilience = 2\neffort = 3\nandroid = 1\n\
               ios = 1\nwindows = 1\nsilent_to_strangers = 2\npayload_hidden = 1\n",
    },
    Preset {
        name: "campus",
        title: "a university or company with thousands of people and services",
        text: "must = [\"revocation\"]\n[weights]\nthroughput = 2\nlatency = 1\ncpu = 3\neffort = 4\nresilience = 1\n\
               single-sign-on = 2\nper-service = 2\nidentity_hidden = 1\nwindows = 1\nmac-os = 1\n",
    },
    Preset {
        name: "factory",
        title: "controllers without encryption of their own, which nobody else may speak to",
        text: "must = [\"flipped_bit_noticed\", \"replay_refused\"]\n[weights]\nlatency = 4\nresilience = 3\noverhead = 2\n\
               silent_to_strangers = 3\nwithstands_flood = 2\neffort = 1\n",
    },
    Preset {
        name: "cloud",
        title: "services among themselves, which speak TLS and pay for processors",
        text: "[weights]\nthroughput = 4\ncpu = 4\nlatency = 2\noverhead = 2\nper-service = 2\nsilent_to_strangers = 1\n",
    },
];

/// Returns the weights of a preset.
///
/// # Errors
///
/// Fails if there is no preset of this name.
pub fn named(name: &str) -> Result<Weights> {
    let names = ALL.map(|preset| preset.name).join(", ");
    let preset = ALL.iter().find(|preset| preset.name == name);
    Weights::read(preset.with_context(|| format!("there is no preset `{name}`; the presets are: {names}"))?.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_can_be_read() {
        for preset in ALL {
            named(preset.name).unwrap();
        }
        assert!(named("moon").unwrap_err().to_string().contains("factory"));
    }
}
