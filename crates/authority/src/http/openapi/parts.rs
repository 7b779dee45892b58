//! Parts of the OpenAPI description that handlers refer to.

use utoipa::openapi::RefOr;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, PartialSchema, ToSchema};

/// The head of the OpenAPI description: title and security schemes.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Vouchsafe authority",
        description = "Logs people in, issues grants, and distributes keys to verifiers. Errors are problem+json (RFC 9457); times are \
                       Unix seconds; byte strings are lower-case hex."
    ),
    components(schemas(api::Problem)),
    modifiers(&Bearers)
)]
pub struct Head;

struct Bearers;

impl Modify for Bearers {
    fn modify(&self, api: &mut utoipa::openapi::OpenApi) {
        let components = api.components.get_or_insert_default();
        for (name, whose) in [
            ("session", "The token in the answer to `POST /v1/login`"),
            ("verifier", "The token in the answer to `POST /v1/verifiers/enrol`"),
        ] {
            let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(whose)).build();
            components.add_security_scheme(name, SecurityScheme::Http(scheme));
        }
    }
}

/// A handle in a path: 16 hex digits.
pub struct HandleText;

impl PartialSchema for HandleText {
    fn schema() -> RefOr<utoipa::openapi::Schema> {
        let text = utoipa::openapi::schema::Type::String;
        utoipa::openapi::ObjectBuilder::new().schema_type(text).pattern(Some("^[0-9a-fA-F]{16}$")).build().into()
    }
}

impl ToSchema for HandleText {}
