//! Password accounts.

use super::identities::{self, SERVICE};
use super::{AuditEvent, Database, Operator, holders, names, persons, sessions};
use anyhow::{Result, bail};
use rusqlite::{OptionalExtension, params};
use serde::Serialize;
use zeroize::Zeroizing;

/// The stored credentials of an account, against which logins are checked. Has no `Debug`, because it holds secrets.
pub struct Account {
    /// The password's argon2id hash in PHC form.
    pub password: String,
    /// The TOTP secret, if the account has a second factor.
    pub totp: Option<Zeroizing<Vec<u8>>>,
}

/// The effect of a password change on the account's second factor. Has no `Debug`, because it holds a secret.
pub enum SecondFactor {
    /// The second factor stays as it is, if there is one.
    Kept,
    /// The second factor is removed.
    Removed,
    /// The account gets this TOTP secret.
    New(Zeroizing<Vec<u8>>),
}

/// An entry of the list of accounts: a password account, or a person of the identity provider.
#[derive(Debug, Serialize)]
pub struct AccountEntry {
    /// The person's name.
    pub person: String,
    /// The identity provider that vouches for the person; `None` for an account of the authority's own.
    pub issuer: Option<String>,
    /// Groups that the identity provider reported for the person.
    pub groups: Vec<String>,
    /// Whether the account has a second factor at the authority.
    pub totp: bool,
    /// Time of creation, in Unix seconds.
    pub created: u64,
    /// The devices from which the person has logged in.
    pub devices: Vec<String>,
}

impl Database {
    /// Adds a password account.
    ///
    /// # Errors
    /// Fails if the name is in use, or the database cannot be written.
    pub fn add_account(&mut self, person: &str, account: &Account, by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            if identities::is_known(transaction, person)? {
                bail!(
                    "the name {person} belongs to a person of the identity provider or to a service account: choose \
                     another name"
                );
            }
            let added = transaction.execute(
                "INSERT OR IGNORE INTO accounts (person, password, totp, created) VALUES (?1, ?2, ?3, ?4)",
                params![person, account.password, account.totp.as_ref().map(|totp| totp.as_slice()), now.cast_signed()],
            )?;
            if added == 0 {
                bail!("the account {person} already exists: `vouchsafe authority user passwd` changes its password");
            }
            let factor = if account.totp.is_some() { "with second factor" } else { "" };
            AuditEvent::new("account_added").person(person).detail(factor).by(by).write(transaction, now)
        })
    }

    /// Changes a password, ends the account's sessions and their grants, and removes its passkeys, because an attacker
    /// who knew the old password has possibly added some. Returns the number of removed passkeys.
    ///
    /// # Errors
    /// Fails if there is no such account, or the database cannot be written.
    pub fn change_password(
        &mut self,
        person: &str,
        password: &str,
        factor: &SecondFactor,
        by: &Operator,
        now: u64,
    ) -> Result<usize> {
        self.write(|transaction| {
            if transaction.execute("UPDATE accounts SET password = ?2 WHERE person = ?1", [person, password])? == 0 {
                bail!("no account {person}: `vouchsafe authority user list` lists the accounts");
            }
            let (secret, said) = match factor {
                SecondFactor::Kept => (None, ""),
                SecondFactor::Removed => (Some(None), "; second factor removed"),
                SecondFactor::New(secret) => (Some(Some(secret.as_slice())), "; second factor replaced"),
            };
            if let Some(secret) = secret {
                transaction.execute("UPDATE accounts SET totp = ?2 WHERE person = ?1", params![person, secret])?;
            }
            let passkeys = transaction.execute("DELETE FROM passkeys WHERE person = ?1", [person])?;
            sessions::end_of_person(transaction, person, now)?;
            let event = AuditEvent::new("password_changed").person(person).by(by);
            event.detail(format!("passkeys removed: {passkeys}{said}")).write(transaction, now)?;
            Ok(passkeys)
        })
    }

    /// Removes the account of `person`, or the records about a person of the identity provider with this name. Also
    /// removes the person's devices, and ends the person's sessions and grants.
    ///
    /// # Errors
    /// Fails if there is no such person, `person` is a service account, or the database cannot be written.
    pub fn remove_account(&mut self, person: &str, by: &Operator, now: u64) -> Result<()> {
        self.write(|transaction| {
            let account = transaction.execute("DELETE FROM accounts WHERE person = ?1", [person])?;
            let identity = "DELETE FROM identities WHERE person = ?1 AND issuer <> ?2";
            if account + transaction.execute(identity, [person, SERVICE])? == 0 {
                if identities::is_known(transaction, person)? {
                    bail!("{person} is a service account: `vouchsafe authority service remove` removes it");
                }
                bail!("no account {person}: `vouchsafe authority user list` lists the accounts");
            }
            persons::forget(transaction, person)?;
            holders::forget(transaction, person)?;
            sessions::end_of_person(transaction, person, now)?;
            AuditEvent::new("account_removed").person(person).by(by).write(transaction, now)
        })
    }

    /// Returns the password account of a person, or `None` if there is none.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn account(&self, person: &str) -> Result<Option<Account>> {
        let mut statement = self.connection.prepare_cached("SELECT password, totp FROM accounts WHERE person = ?1")?;
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Account { password: row.get(0)?, totp: row.get::<_, Option<Vec<u8>>>(1)?.map(Zeroizing::new) })
        };
        Ok(statement.query_row([person], read).optional()?)
    }

    /// Records that the TOTP code of a time step was used. Returns false if this code or a later code was used before.
    /// So each code is valid only once.
    ///
    /// # Errors
    /// Fails if the database cannot be written.
    pub fn use_totp_step(&mut self, person: &str, step: u64) -> Result<bool> {
        self.write(|transaction| {
            let used = transaction.execute(
                "UPDATE accounts SET totp_step = ?2 WHERE person = ?1 AND totp_step < ?2",
                params![person, step.cast_signed()],
            )?;
            Ok(used == 1)
        })
    }

    /// Reports whether a name is in use: by an account, a person of the identity provider, or a service account.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn knows(&self, person: &str) -> Result<bool> {
        let known = "SELECT EXISTS (SELECT 1 FROM accounts WHERE person = ?1)
                         OR EXISTS (SELECT 1 FROM identities WHERE person = ?1)";
        Ok(self.connection.query_row(known, [person], |row| row.get(0))?)
    }

    /// Returns all password accounts and all persons of the identity provider who have logged in, sorted by name.
    ///
    /// # Errors
    /// Fails if the database cannot be read.
    pub fn accounts(&self) -> Result<Vec<AccountEntry>> {
        let mut devices = self.connection.prepare("SELECT device FROM devices WHERE person = ?1 ORDER BY device")?;
        let mut statement = self.connection.prepare(
            "SELECT person, totp IS NOT NULL, created, NULL, NULL FROM accounts
             UNION ALL SELECT person, 0, created, issuer, groups FROM identities WHERE issuer <> '' ORDER BY person",
        )?;
        let rows = statement.query_map([], |row| {
            let person: String = row.get(0)?;
            let devices = devices.query_map([&person], |row| row.get(0))?.collect::<Result<_, _>>()?;
            let (issuer, groups) = (row.get(3)?, names(row.get(4)?));
            let created = row.get::<_, i64>(2)?.cast_unsigned();
            Ok(AccountEntry { person, issuer, groups, totp: row.get(1)?, created, devices })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
