//! The state of each user that is kept across restarts: the session and the consent rules. There is one file for each
//! user, which only root can read.

use anyhow::Result;
use engine::agent::ConsentRules;
use ipnet::IpNet;
use reach::kept::KeptSession;
use reach::organisation::OrganisationName;
use serde::{Deserialize, Serialize};
use shell::folder::Folder;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// The stored state of one user. The type does not implement `Debug` because it contains a secret.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct Kept {
    /// The user's consent rules, which are kept after the session has ended.
    #[serde(default)]
    pub rules: ConsentRules,
    /// The session with the default organisation, if there is one.
    #[serde(default)]
    pub session: Option<KeptSession>,
    /// The only networks for which the default organisation may speak. `None` if it may speak for all networks that no
    /// other organisation has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub networks: Option<Vec<IpNet>>,
    /// The user's other organisations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub organisations: BTreeMap<OrganisationName, KeptOrganisation>,
}

/// The stored state of one of a user's organisations. The state remains after the session has ended, so that no other
/// organisation can claim its networks.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct KeptOrganisation {
    /// Number of the organisation in this process, at least 1.
    #[serde(skip)]
    pub number: u16,
    /// The only networks for which the organisation may speak.
    pub networks: Vec<IpNet>,
    /// The session with this organisation, if there is one.
    #[serde(default)]
    pub session: Option<KeptSession>,
}

impl Kept {
    /// Returns the number, name and networks of each organisation, the default one first.
    pub fn all(&self) -> impl Iterator<Item = (u16, Option<&OrganisationName>, Option<&[IpNet]>)> {
        let named = self.organisations.iter().map(|(name, one)| (one.number, Some(name), Some(&*one.networks)));
        std::iter::once((0, None, self.networks.as_deref())).chain(named)
    }

    /// Returns the number of an organisation; `None` if the user does not have it.
    pub fn number(&self, name: Option<&OrganisationName>) -> Option<u16> {
        self.all().find(|(_, known, _)| *known == name).map(|(number, ..)| number)
    }

    /// Returns the name of the organisation with this number; `None` for the default one.
    pub fn name(&self, number: u16) -> Option<&OrganisationName> {
        self.all().find(|(known, ..)| *known == number)?.1
    }

    /// Sets the networks of an organisation, and adds the organisation if the user does not have it. Returns its
    /// number.
    pub fn set_networks(&mut self, name: Option<&OrganisationName>, networks: Option<Vec<IpNet>>) -> u16 {
        let Some(name) = name else {
            self.networks = networks;
            return 0;
        };
        let free =
            (1..).find(|number| self.organisations.values().all(|one| one.number != *number)).unwrap_or(u16::MAX);
        let one = self.organisations.entry(name.clone()).or_default();
        if one.number == 0 {
            one.number = free;
        }
        one.networks = networks.unwrap_or_default();
        one.number
    }

    /// Forgets the networks of an organisation, and the organisation if it has a name.
    pub fn forget(&mut self, name: Option<&OrganisationName>) {
        match name {
            None => self.networks = None,
            Some(name) => drop(self.organisations.remove(name)),
        }
    }

    /// Returns the session with the organisation of this number; `None` if there is no such session or organisation.
    pub fn session(&self, number: u16) -> Option<&KeptSession> {
        match number {
            0 => self.session.as_ref(),
            _ => self.organisations.values().find(|one| one.number == number)?.session.as_ref(),
        }
    }

    /// Returns the session with the organisation of this number, for the caller to change; `None` if there is no such
    /// organisation.
    pub fn session_mut(&mut self, number: u16) -> Option<&mut Option<KeptSession>> {
        match number {
            0 => Some(&mut self.session),
            _ => self.organisations.values_mut().find(|one| one.number == number).map(|one| &mut one.session),
        }
    }

    /// Reports whether there is a session with any organisation.
    #[cfg(feature = "seal")]
    pub fn has_session(&self) -> bool {
        self.session.is_some() || self.organisations.values().any(|one| one.session.is_some())
    }

    /// Numbers the organisations, after they were read.
    fn with_numbers(mut self) -> Self {
        self.organisations.values_mut().zip(1..).for_each(|(one, number)| one.number = number);
        self
    }
}

/// The folder with the states of all users. It is locked, so that no other daemon uses it.
pub struct Sessions {
    folder: Folder,
    _lock: File,
}

impl Sessions {
    /// Opens the folder, creating it if it is missing, and locks it against other daemons.
    ///
    /// # Errors
    ///
    /// Fails if the folder can't be made, or another daemon has locked it.
    pub fn open(path: PathBuf) -> Result<Self> {
        let folder = Folder::at(path);
        folder.make()?;
        let _lock = folder.lock("agent")?;
        Ok(Self { folder, _lock })
    }

    /// Returns the folder, for other files of the daemon.
    #[cfg(feature = "seal")]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Reads all stored states, by user id. Leaves out files whose content is invalid.
    ///
    /// # Errors
    ///
    /// Fails if the folder or a file in it can't be read.
    pub fn load(&self) -> Result<BTreeMap<u32, Kept>> {
        let mut all = BTreeMap::new();
        for name in self.folder.names()? {
            let Some(uid) = name.strip_suffix(".json").and_then(|uid| uid.parse().ok()) else { continue };
            let Some(text) = self.folder.read(&name)?.map(Zeroizing::new) else { continue };
            match serde_json::from_slice::<Kept>(&text) {
                Ok(kept) => drop(all.insert(uid, kept.with_numbers())),
                // A broken file must not affect other users.
                Err(error) => {
                    let file = self.folder.file(&name);
                    let file = file.display();
                    tracing::error!(%file, "cannot read the saved session, so its user has to log in again: {error}");
                }
            }
        }
        Ok(all)
    }

    /// Writes a user's state. The user's file is replaced atomically.
    ///
    /// # Errors
    ///
    /// Fails if the file can't be written.
    pub fn save(&self, uid: u32, kept: &Kept) -> Result<()> {
        self.folder.write(&format!("{uid}.json"), &Zeroizing::new(serde_json::to_vec(kept)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_kept_per_user_and_a_broken_one_is_left_out() {
        let room = tempfile::tempdir().unwrap();
        let path = room.path().join("agent");
        let sessions = Sessions::open(path.clone()).unwrap();
        assert!(Sessions::open(path.clone()).is_err(), "locked");
        sessions.save(1000, &Kept::default()).unwrap();
        std::fs::write(path.join("1001.json"), "{").unwrap();
        std::fs::write(path.join("1002.new"), "{}").unwrap();
        assert_eq!(sessions.load().unwrap().into_keys().collect::<Vec<_>>(), [1000]);
    }

    #[test]
    fn organisations_are_kept_with_their_networks_and_an_earlier_file_is_read() {
        let room = tempfile::tempdir().unwrap();
        let sessions = Sessions::open(room.path().join("agent")).unwrap();
        let session =
            r#"{"authority":"https://a.example","ca":null,"token":"t","person":"alice","device":"d","expires":9}"#;
        std::fs::write(room.path().join("agent/1000.json"), format!(r#"{{"rules":[],"session":{session}}}"#)).unwrap();
        let mut kept = sessions.load().unwrap().remove(&1000).unwrap();
        assert!(kept.session(0).is_some() && kept.networks.is_none() && kept.organisations.is_empty());
        let before = serde_json::to_value(&kept).unwrap();
        assert!(before.get("organisations").is_none() && before.get("networks").is_none(), "{before}");
        let name = |text: &str| text.parse::<OrganisationName>().unwrap();
        let network: IpNet = "192.0.2.0/24".parse().unwrap();
        assert_eq!(kept.set_networks(Some(&name("a")), Some(vec![network])), 1);
        assert_eq!(kept.set_networks(Some(&name("b")), None), 2);
        kept.forget(Some(&name("a")));
        assert_eq!(kept.set_networks(Some(&name("c")), Some(vec![network])), 1, "a free number");
        *kept.session_mut(1).unwrap() = kept.session(0).cloned();
        sessions.save(1000, &kept).unwrap();
        let again = sessions.load().unwrap().remove(&1000).unwrap();
        let number = again.number(Some(&name("c"))).unwrap();
        assert!(again.session(number).is_some() && again.session(0).is_some());
        assert_eq!(again.all().count(), 3);
        assert_eq!(again.organisations[&name("c")].networks, [network]);
    }
}
