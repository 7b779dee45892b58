//! `vouchsafe login` (with a password, through a browser, with a device code, or with a service account's key) and
//! `vouchsafe logout`.

use super::redirect::Redirect;
use super::{ask, discover, done, no, unexpected};
use crate::at::At;
use anyhow::{Context, Result, bail, ensure};
use api::ServiceKey;
use clap::Args;
use ipnet::IpNet;
use reach::organisation::OrganisationName;
use reach::protocol::{Call, LoginStarted, LoginWay, Reply};
use shell::println;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// Interval at which the client asks the daemon whether a login in a browser has failed.
const LOOK: Duration = Duration::from_secs(5);
/// Interval between tries to log in, with `--every`.
const AGAIN: Duration = Duration::from_secs(10);

/// Log in to an authority
#[derive(Args, Debug)]
pub struct LoginArguments {
    #[command(flatten)]
    pub(super) at: At,
    /// The domain to log in to. A DNS record names the domain's authority, and the authority's certificate must be for
    /// a name in this domain; takes precedence over --authority
    #[arg(required_unless_present = "authority")]
    domain: Option<String>,
    /// The authority to log in to: https://HOST:PORT, or a name for which DNS lists the authority's servers (SRV). The
    /// authority's certificate must be for this name
    #[arg(long, value_name = "URL|NAME", env = "VOUCHSAFE_AUTHORITY")]
    authority: Option<String>,
    /// Trust the certificates in this file and no others [default: the system's]
    #[arg(long, value_name = "FILE", env = "VOUCHSAFE_CA")]
    ca: Option<PathBuf>,
    /// Log in with a password, under this name [default: with the identity provider, if the authority has one]
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Read the password from standard input
    #[arg(long)]
    password_stdin: bool,
    /// The six digits of your second factor [default: ask if needed]
    #[arg(long, value_name = "CODE")]
    totp: Option<String>,
    /// Log in with the identity provider in a browser on another machine
    #[arg(long, conflicts_with_all = ["user", "password_stdin", "totp"])]
    device_code: bool,
    /// Print the URL instead of opening a browser
    #[arg(long)]
    no_open: bool,
    /// Log in as a service account, with the key in this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "password_stdin", "totp", "device_code"])]
    service_key: Option<PathBuf>,
    /// Log in again at this interval, because sessions end; if the authority does not answer, try again soon
    #[arg(long, value_name = "TIME", requires = "service_key", value_parser = interval)]
    every: Option<Duration>,
    /// Name for this device [default: its host name]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Log in to a further organisation, under this name, and keep the sessions with other organisations. The first
    /// time, --network has to say for which addresses this organisation's authority may speak
    #[arg(long, value_name = "NAME", env = "VOUCHSAFE_ORGANISATION")]
    organisation: Option<OrganisationName>,
    /// Let the authority speak only for the networks that this option names; may be repeated [default: as before; an
    /// organisation without a name may speak for all networks that no other organisation has]
    #[arg(long, value_name = "NETWORK")]
    network: Vec<IpNet>,
}

/// End the session
#[derive(Args, Debug)]
pub struct LogoutArguments {
    #[command(flatten)]
    pub(super) at: At,
    /// Print the URL for logging out at the identity provider instead of opening it
    #[arg(long)]
    no_open: bool,
    /// End the session with this organisation [default: the one without a name]
    #[arg(long, value_name = "NAME", env = "VOUCHSAFE_ORGANISATION")]
    organisation: Option<OrganisationName>,
    /// Also forget the organisation's networks, so that another organisation can have them
    #[arg(long)]
    forget: bool,
}

/// The authority to log in to, and the device's name.
struct LoginTarget {
    at: At,
    authority: String,
    ca: Option<String>,
    device: String,
}

pub async fn run(arguments: LoginArguments) -> Result<ExitCode> {
    let LoginArguments {
        mut at,
        domain,
        authority,
        ca,
        user,
        password_stdin,
        totp,
        device_code,
        no_open,
        service_key,
        every,
        device,
        organisation,
        network,
    } = arguments;
    if organisation.is_some() || !network.is_empty() {
        require_organisations(&at).await?;
    }
    at.set_organisation(organisation, network);
    let authority = match (domain, authority) {
        (Some(domain), _) => match discover::authority_of(&at, &domain).await? {
            Ok(authority) => authority,
            Err(code) => return Ok(code),
        },
        (None, authority) => {
            authority.context("no authority given: use `vouchsafe login DOMAIN` or `--authority URL`")?
        }
    };
    let ca = ca.as_deref().map(read_ca).transpose()?;
    let device = match device {
        Some(device) => device,
        None => {
            let host = nix::sys::utsname::uname().context("cannot find this host's name")?;
            host.nodename().to_string_lossy().into_owned()
        }
    };
    let target = LoginTarget { at, authority, ca, device };
    if let Some(file) = service_key {
        let Some(every) = every else { return service(&target, &file).await };
        loop {
            let outcome = service(&target, &file).await;
            let pause = match &outcome {
                Ok(ExitCode::SUCCESS) => every,
                _ => every.min(AGAIN),
            };
            if let Err(error) = outcome {
                tracing::warn!("cannot log in, trying again in {pause:?}: {error:#}");
            }
            tokio::time::sleep(pause).await;
        }
    }
    if device_code {
        return by_device_code(&target).await;
    }
    if user.is_none() && !password_stdin {
        let call = Call::LoginMethods { authority: target.authority.clone(), ca: target.ca.clone() };
        match target.at.call(call).await? {
            Reply::LoginMethods(methods) => {
                if methods.provider.is_some() {
                    return by_browser(&target, !no_open).await;
                }
            }
            other => return unexpected(other),
        }
    }
    by_password(target, user, password_stdin, totp).await
}

/// Makes sure that the agent knows organisations: an older agent would replace the user's only session.
async fn require_organisations(at: &At) -> Result<()> {
    match at.call(Call::Status).await? {
        Reply::Status(status) if status.organisations.is_empty() && status.own.is_none() => {
            bail!("the running agent is older than this command and supports only one organisation: restart the agent")
        }
        _ => Ok(()),
    }
}

pub async fn logout(arguments: LogoutArguments) -> Result<ExitCode> {
    let LogoutArguments { mut at, no_open, organisation, forget } = arguments;
    if organisation.is_some() {
        require_organisations(&at).await?;
    }
    at.set_organisation(organisation, Vec::new());
    match at.call(Call::Logout { forget }).await? {
        Reply::LoggedOut { text, provider } => {
            println!(
                "{text}\n\nThe identity provider still has a session in this browser. Log out there, too:\n\n  \
                 {provider}\n"
            );
            if !no_open {
                open_browser(&provider);
            }
            Ok(ExitCode::SUCCESS)
        }
        reply => done(reply),
    }
}

const NO_TERMINAL: &str = "cannot ask for the password without a terminal: use `--password-stdin`";

async fn by_password(
    target: LoginTarget,
    user: Option<String>,
    password_stdin: bool,
    totp: Option<String>,
) -> Result<ExitCode> {
    let person = match user {
        Some(user) => user,
        None => ask("User: ")?,
    };
    let password = if password_stdin {
        let mut text = Zeroizing::new(String::new());
        std::io::stdin().take(64 * 1024).read_to_string(&mut text).context("cannot read the password")?;
        Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned())
    } else {
        Zeroizing::new(rpassword::prompt_password("Password: ").ok().context(NO_TERMINAL)?)
    };
    let LoginTarget { at, authority, ca, device } = target;
    let call = |totp| Call::Login {
        authority: authority.clone(),
        ca: ca.clone(),
        person: person.clone(),
        password: password.to_string(),
        totp,
        device: device.clone(),
    };
    let asks = totp.is_none() && std::io::stdin().is_terminal();
    match at.call(call(totp)).await? {
        Reply::Refused { kind, .. } if kind == "second_factor_required" && asks => {
            let code = ask("Second factor: ")?;
            done(at.call(call(Some(code))).await?)
        }
        reply => done(reply),
    }
}

async fn by_browser(target: &LoginTarget, open: bool) -> Result<ExitCode> {
    let redirect = Redirect::listen().await?;
    let way = LoginWay::Browser { port: redirect.port() };
    let (url, state, comparison, expires_in) = match start(target, way).await? {
        Reply::LoginStarted(LoginStarted::Browser { url, state, comparison, expires_in }) => {
            (url, state, comparison, expires_in)
        }
        other => return unexpected(other),
    };
    println!("Log in with your browser:\n\n  {url}\n");
    println!("and approve if the page there shows this code:\n\n  {comparison}\n");
    if open {
        open_browser(&url);
    }
    let (callback, page) = tokio::select! {
        came = redirect.callback(&state) => came?,
        ended = refusal(target) => return unexpected(ended?),
        () = tokio::time::sleep(Duration::from_secs(expires_in)) => {
            return no("the login did not complete in time: run `vouchsafe login` again");
        }
    };
    // Answer the browser only now, so that it shows the outcome of the login.
    match target.at.call(Call::FinishLogin { callback: Some(callback) }).await? {
        Reply::Done { text } => {
            page.welcome(&text).await;
            done(Reply::Done { text })
        }
        Reply::Refused { kind, text } => {
            page.refuse(&text).await;
            unexpected(Reply::Refused { kind, text })
        }
        other => unexpected(other),
    }
}

/// Waits until the login has failed. If the person declines, the browser is not redirected to this machine, so the
/// client has to ask.
async fn refusal(target: &LoginTarget) -> Result<Reply> {
    loop {
        tokio::time::sleep(LOOK).await;
        match target.at.call(Call::FinishLogin { callback: None }).await? {
            Reply::LoginPending => {}
            // The authority may be reachable again before the person has answered.
            Reply::Refused { kind, .. } if kind == "unreachable" => {}
            reply => return Ok(reply),
        }
    }
}

async fn by_device_code(target: &LoginTarget) -> Result<ExitCode> {
    let (user_code, url, url_with_code, interval, expires_in) = match start(target, LoginWay::DeviceCode).await? {
        Reply::LoginStarted(LoginStarted::DeviceCode { user_code, url, url_with_code, interval, expires_in }) => {
            (user_code, url, url_with_code, interval, expires_in)
        }
        other => return unexpected(other),
    };
    println!("In a browser on any machine, open\n\n  {url}\n\nand enter the code\n\n  {user_code}\n");
    if let Some(url) = url_with_code {
        println!("or open, and compare the code:\n\n  {url}\n");
    }
    println!("Enter only a code that you requested yourself.");
    let until = Instant::now() + Duration::from_secs(expires_in);
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(interval)).await;
        match target.at.call(Call::FinishLogin { callback: None }).await? {
            Reply::LoginPending => {}
            reply => return done(reply),
        }
    }
    no("nobody entered the code in time: run `vouchsafe login` again")
}

async fn service(LoginTarget { at, authority, ca, device }: &LoginTarget, file: &Path) -> Result<ExitCode> {
    let text = Zeroizing::new(read(file)?);
    let key: ServiceKey = serde_json::from_str(&text).with_context(|| {
        format!("{} is not a key file written by `vouchsafe authority service add`", file.display())
    })?;
    // By default, trust only the CA in the key's file, so that only the authority that made the key gets the key.
    // `--ca` is for the time after that CA was renewed.
    let ca = Some(ca.clone().unwrap_or_else(|| key.ca.clone()));
    let (authority, device) = (authority.clone(), device.clone());
    done(at.call(Call::ServiceLogin { authority, ca, key, device }).await?)
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = engine::document::seconds(text).filter(|seconds| *seconds > 0);
    seconds.map(|seconds| Duration::from_secs(seconds.into())).ok_or_else(|| "a time such as `6h` or `30m`".to_owned())
}

async fn start(target: &LoginTarget, way: LoginWay) -> Result<Reply> {
    let LoginTarget { at, authority, ca, device } = target;
    let (authority, ca, device) = (authority.clone(), ca.clone(), device.clone());
    at.call(Call::StartLogin { authority, ca, device, way }).await
}

fn open_browser(url: &str) {
    let graphical = ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].iter().any(|name| std::env::var_os(name).is_some());
    // The URL comes from the authority: open it only if it is a web page.
    if graphical && ["https://", "http://"].iter().any(|scheme| url.starts_with(scheme)) {
        let mut command = Command::new("xdg-open");
        let _ = command.arg(url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    }
}

fn read(file: &Path) -> Result<String> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    match text.is_empty() {
        true => bail!("{} is empty", file.display()),
        false => Ok(text),
    }
}

/// Reads the file of a CA's certificates.
fn read_ca(file: &Path) -> Result<String> {
    let text = read(file)?;
    let way_out = "name the authority's ca.pem";
    ensure!(text.contains("-----BEGIN CERTIFICATE-----"), "no certificate in {}: {way_out}", file.display());
    Ok(text)
}
