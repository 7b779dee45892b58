//! OpenAPI schemas of notations that several types share.

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ArrayBuilder, KnownFormat, ObjectBuilder, OneOfBuilder, Schema, SchemaFormat, Type};

/// Returns the schema of an IPv4 or IPv6 address.
pub(crate) fn address() -> Schema {
    let text = |format| ObjectBuilder::new().schema_type(Type::String).format(Some(SchemaFormat::KnownFormat(format)));
    OneOfBuilder::new().item(text(KnownFormat::Ipv4)).item(text(KnownFormat::Ipv6)).build().into()
}

/// Returns the schema of a list of addresses.
pub(crate) fn addresses() -> Schema {
    ArrayBuilder::new().items(RefOr::T(address())).build().into()
}

/// Returns the schema of an address that may be `null`.
pub(crate) fn address_or_none() -> Schema {
    let none = ObjectBuilder::new().schema_type(Type::Null);
    OneOfBuilder::new().item(address()).item(none).build().into()
}

/// Returns the schema of a handle: 16 hex digits.
pub(crate) fn handle() -> Schema {
    ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[0-9a-fA-F]{16}$")).build().into()
}
