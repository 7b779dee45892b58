//! `vouchsafe authority service …`: manages service accounts, with which machines log in by a key.

use super::{At, List, show};
use crate::admin;
use anyhow::{Context, Result};
use clap::Subcommand;
use shell::println;
use shell::table::utc;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// Manage service accounts: machines that log in with a key
#[derive(Subcommand, Debug)]
pub enum ServiceCommand {
    /// Add a service account and write the key file that its machine logs in with
    Add {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The service's name
        name: String,
        /// The file to create for the key; only you can read it
        #[arg(long, value_name = "FILE")]
        key_file: PathBuf,
        /// A group of the service account; may be repeated
        #[arg(long = "group", value_name = "NAME")]
        groups: Vec<String>,
        /// A tag of the service account, for rules about "tag:NAME"; may be repeated
        #[arg(long = "tag", value_name = "NAME")]
        tags: Vec<String>,
    },
    /// Set the groups of a service account; replaces all previous groups
    Groups {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The service's name
        name: String,
        /// The groups; without any, the service account is removed from all groups
        groups: Vec<String>,
    },
    /// Set the tags of a service account, for rules about "tag:NAME"; replaces all previous tags
    Tags {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The service's name
        name: String,
        /// The tags; without any, all tags are removed
        tags: Vec<String>,
    },
    /// List service accounts
    List(List),
    /// Remove a service account; its key becomes invalid, its sessions and grants end
    Remove {
        /// The authority's directory
        #[command(flatten)]
        at: At,
        /// The service's name
        name: String,
    },
}

pub(super) async fn run(command: ServiceCommand) -> Result<()> {
    match command {
        ServiceCommand::Add { at, name, key_file, groups, tags } => {
            let shown = key_file.display();
            // Create the file before the account: if the file cannot be created, no account is added whose key would be
            // lost.
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key_file);
            let mut file = file.with_context(|| format!("cannot create {shown}"))?;
            let written = async {
                let key = admin::add_service(&at.directory(), &name, &groups, &tags).await?;
                file.write_all(Zeroizing::new(serde_json::to_string_pretty(&key)?).as_bytes())?;
                anyhow::Ok(file.sync_all()?)
            };
            if let Err(error) = written.await {
                let _ = std::fs::remove_file(&key_file);
                return Err(error);
            }
            println!("added {name}; its key exists only in {shown}");
            println!("log in on the service's machine: vouchsafe login --authority URL --service-key FILE");
        }
        ServiceCommand::Groups { at, name, groups } => {
            admin::set_service_groups(&at.directory(), &name, &groups).await?;
            println!("{name} is in {}", if groups.is_empty() { "no group".into() } else { groups.join(", ") });
        }
        ServiceCommand::Tags { at, name, tags } => {
            admin::set_service_tags(&at.directory(), &name, &tags).await?;
            println!("{name} has {}", if tags.is_empty() { "no tags".into() } else { tags.join(", ") });
        }
        ServiceCommand::List(list) => {
            let services = list.at.database()?.services()?;
            show(&list, &services, &["SERVICE", "GROUPS", "TAGS", "CREATED", "LAST LOGIN", "KEY"], |service| {
                let last = service.last_login.map_or_else(|| "-".into(), utc);
                let (groups, tags) = (service.groups.join(", "), service.tags.join(", "));
                vec![service.service.clone(), groups, tags, utc(service.created), last, service.key.clone()]
            })?;
        }
        ServiceCommand::Remove { at, name } => {
            admin::remove_service(&at.directory(), &name).await?;
            println!("removed {name}");
        }
    }
    Ok(())
}
