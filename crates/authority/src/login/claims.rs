//! The claims of an identity provider about a person, as far as the authority uses them.

use super::ProviderSettings;
use engine::policy::name_is_valid;
use serde_json::{Map, Value};

/// Maximum number of groups of one person.
const MOST_GROUPS: usize = 1000;

/// A person's identity, as the provider asserts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The provider's issuer identifier.
    pub issuer: String,
    /// The provider's identifier for the person, which is never reassigned.
    pub subject: String,
    /// The person's name at this authority.
    pub person: String,
    /// The names of the person's groups, sorted. Names that no policy can contain are left out.
    pub groups: Vec<String>,
    /// The provider's identifier for its own session, for back-channel logouts.
    pub sid: Option<String>,
}

impl Identity {
    /// Reads claims that have been verified.
    ///
    /// # Errors
    /// Fails if a claim is missing or malformed, or the provider has not verified the e-mail address; the error is a
    /// message for the person who logs in.
    pub fn read(settings: &ProviderSettings, claims: &Map<String, Value>) -> Result<Self, String> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let subject = text("sub").ok_or("the identity provider's answer has no `sub` claim")?;
        let claim = &settings.person_claim;
        let person = text(claim).ok_or_else(|| {
            format!("the identity provider sends no claim `{claim}`: set `person_claim`, or add a scope")
        })?;
        if claim == "email" && claims.get("email_verified") != Some(&Value::Bool(true)) {
            return Err(format!("the identity provider has not verified the e-mail address {}", person.escape_debug()));
        }
        if !name_is_valid(person) {
            return Err(format!(
                "the identity provider names you `{}`, which is not a valid name at this authority: an operator can choose \
                 another claim by `person_claim`",
                person.escape_debug()
            ));
        }
        let mut groups = match claims.get(&settings.groups_claim) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(group)) => vec![group.clone()],
            Some(Value::Array(groups)) => groups.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(_) => {
                return Err(format!(
                    "the identity provider's claim `{}` is not a list of names",
                    settings.groups_claim
                ));
            }
        };
        if groups.len() > MOST_GROUPS {
            return Err(format!("the identity provider lists {} groups; the maximum is {MOST_GROUPS}", groups.len()));
        }
        // A policy cannot contain such a name, so the group has no effect.
        groups.retain(|group| name_is_valid(group));
        groups.sort();
        groups.dedup();
        let sid = text("sid").map(str::to_owned);
        Ok(Self { issuer: settings.issuer.clone(), subject: subject.into(), person: person.into(), groups, sid })
    }

    /// Adds the claims of the provider's UserInfo response to the claims of its ID token. If both contain a claim, the
    /// claim of the ID token takes precedence. UserInfo's `email_verified` refers to UserInfo's `email` (OpenID Connect
    /// Core, §5.1), so the function takes both of these claims from the same response.
    pub fn add_user_info(claims: &mut Map<String, Value>, mut user_info: Map<String, Value>) {
        match claims.get("email") {
            Some(email) if user_info.get("email") != Some(email) => {
                user_info.remove("email_verified");
            }
            Some(_) => {}
            None => {
                claims.remove("email_verified");
            }
        }
        for (name, value) in user_info {
            claims.entry(name).or_insert(value);
        }
    }

    /// Reports whether `claims` lacks the claim with the person's name or the claim with the groups, as `settings`
    /// names them. If so, the provider's UserInfo endpoint possibly has the missing claim.
    pub fn lacks(settings: &ProviderSettings, claims: &Map<String, Value>) -> bool {
        [&settings.person_claim, &settings.groups_claim].iter().any(|name| !claims.contains_key(*name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Settings;
    use serde_json::json;

    fn read(claims: Value) -> Result<Identity, String> {
        let text = "[oidc]\nissuer = \"https://id.example.org\"\nclient_id = \"vouchsafe\"";
        let settings = Settings::parse(text).unwrap().provider.unwrap();
        Identity::read(&settings, claims.as_object().unwrap())
    }

    #[test]
    fn a_verified_address_is_a_name_and_groups_are_sorted() {
        let claims =
            json!({"sub": "1", "email": "a@example.org", "email_verified": true, "groups": ["z", "a", "z", "/x"]});
        let identity = read(claims).unwrap();
        assert_eq!((identity.person.as_str(), identity.groups), ("a@example.org", vec!["a".into(), "z".into()]));
    }

    #[test]
    fn an_address_that_nobody_verified_is_no_name() {
        assert!(read(json!({"sub": "1", "email": "a@example.org"})).is_err());
        assert!(read(json!({"sub": "1", "email": "a@example.org", "email_verified": false})).is_err());
        assert!(read(json!({"sub": "1", "email": "a@example.org", "email_verified": "true"})).is_err());
    }

    #[test]
    fn claims_of_the_wrong_form_are_refused() {
        assert!(read(json!({"email": "a@example.org", "email_verified": true})).is_err());
        assert!(read(json!({"sub": "1", "email": "../a", "email_verified": true})).is_err());
        assert!(read(json!({"sub": "1", "email": "a@b", "email_verified": true, "groups": {"x": 1}})).is_err());
        let many: Vec<_> = (0..=MOST_GROUPS).map(|n| n.to_string()).collect();
        assert!(read(json!({"sub": "1", "email": "a@b", "email_verified": true, "groups": many})).is_err());
    }

    fn merged(id_token: Value, user_info: Value) -> Result<Identity, String> {
        let mut claims = id_token.as_object().unwrap().clone();
        Identity::add_user_info(&mut claims, user_info.as_object().unwrap().clone());
        read(Value::Object(claims))
    }

    #[test]
    fn user_info_vouches_for_its_own_address_only() {
        let person = |result: Result<Identity, String>| result.map(|identity| identity.person);
        let other = json!({"sub": "1", "email": "mallory@example.org", "email_verified": true});
        assert!(merged(json!({"sub": "1", "email": "alice@example.org"}), other.clone()).is_err());
        assert!(merged(json!({"sub": "1", "email": "alice@example.org"}), json!({"email_verified": true})).is_err());
        assert!(merged(json!({"sub": "1", "email_verified": true}), json!({"email": "alice@example.org"})).is_err());
        assert_eq!(person(merged(json!({"sub": "1"}), other.clone())).as_deref(), Ok("mallory@example.org"));
        let same = json!({"sub": "1", "email": "mallory@example.org"});
        assert_eq!(person(merged(same, other)).as_deref(), Ok("mallory@example.org"));
    }
}
