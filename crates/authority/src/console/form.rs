//! Fields of forms. A page shows the error of a field beside it, and the browser puts the focus on the first field that
//! has an error.

use super::format::sentence;
use maud::{Markup, html};

/// An error of a field.
pub struct Fault {
    /// The id of the field.
    field: String,
    text: String,
}

impl Fault {
    /// Creates an error for the field with this id.
    pub fn at(field: impl Into<String>, text: &str) -> Self {
        Self { field: field.into(), text: sentence(text) }
    }

    /// Reports whether the error belongs to a field of the form named `form`. The ids of the form's fields begin with
    /// this name and a hyphen.
    pub fn is_of(&self, form: &str) -> bool {
        self.field.strip_prefix(form).is_some_and(|rest| rest.starts_with('-'))
    }
}

/// Renders the errors at the top of a page, with links to their fields.
pub fn summary(faults: &[Fault]) -> Markup {
    html! {
        @if !faults.is_empty() {
            div.wrong role="alert" {
                @for Fault { field, text } in faults { p { a href={ "#" (field) } { (text) } } }
            }
        }
    }
}

/// A field for one line of text.
#[derive(Clone, Copy, Default)]
pub struct Input<'a> {
    /// The id of the field, unique on its page.
    pub id: &'a str,
    /// The name under which the form sends the value.
    pub name: &'a str,
    /// The label that people see.
    pub label: &'a str,
    /// The `type` of the HTML element; empty means `text`.
    pub kind: &'a str,
    /// The text that is already in the field. Passwords and codes are never shown again.
    pub value: Option<&'a str>,
    /// A sentence of help, shown below the label.
    pub hint: Option<&'a str>,
    /// The kind of value that browsers may fill in (attribute `autocomplete`).
    pub autocomplete: Option<&'a str>,
    /// The keyboard that phones show (attribute `inputmode`).
    pub inputmode: Option<&'a str>,
    /// The regular expression that the text has to match.
    pub pattern: Option<&'a str>,
    /// An example value, shown while the field is empty.
    pub placeholder: Option<&'a str>,
    /// The maximum number of characters.
    pub maxlength: Option<u32>,
    /// Whether the browser refuses to send the form while the field is empty.
    pub required: bool,
    /// Whether the text is a name or an address, for which browsers must neither check spelling nor capitalise.
    pub verbatim: bool,
    /// The types of the problems that the script shows beside this field, separated by spaces.
    pub problems: Option<&'a str>,
}

impl Input<'_> {
    /// Renders the field with its label, and with its error if `faults` contains an error of this field.
    pub fn show(&self, faults: &[Fault]) -> Markup {
        let Self { id, hint, .. } = self;
        let (fault, state) = (fault(id, faults), State::of(id, faults));
        let described = [hint.map(|_| format!("{id}-hint")), state.described.clone()];
        let described: Vec<_> = described.into_iter().flatten().collect();
        let kind = if self.kind.is_empty() { "text" } else { self.kind };
        html! {
            label for=(id) { (self.label) }
            @if let Some(hint) = hint { p.hint id={ (id) "-hint" } { (hint) } }
            (fault)
            input id=(id) name=(self.name) type=(kind) value=[self.value] autocomplete=[self.autocomplete]
                inputmode=[self.inputmode] pattern=[self.pattern] title=[self.pattern.and(self.placeholder)]
                placeholder=[self.placeholder] maxlength=[self.maxlength] required[self.required]
                autocapitalize=[self.verbatim.then_some("none")] spellcheck=[self.verbatim.then_some("false")]
                data-problems=[self.problems] aria-describedby=[(!described.is_empty()).then(|| described.join(" "))]
                aria-invalid=[state.invalid] autofocus[state.is_first];
        }
    }
}

/// The attributes of a field that depend on its error.
pub struct State {
    /// The id of the element that shows the field's error; `None` if the field has no error.
    pub described: Option<String>,
    /// The value of `aria-invalid`; `None` if the field has no error.
    pub invalid: Option<&'static str>,
    /// Whether the field has the first error of the page.
    pub is_first: bool,
}

impl State {
    /// Returns the state of the field with this id.
    pub fn of(id: &str, faults: &[Fault]) -> Self {
        let is_wrong = faults.iter().any(|fault| fault.field == id);
        let is_first = faults.first().is_some_and(|fault| fault.field == id);
        Self { described: is_wrong.then(|| format!("{id}-fault")), invalid: is_wrong.then_some("true"), is_first }
    }
}

/// Renders the error of the field with this id; renders nothing if the field has no error.
pub fn fault(id: &str, faults: &[Fault]) -> Markup {
    let own = faults.iter().find(|fault| fault.field == id);
    html! { @if let Some(Fault { text, .. }) = own { p.fault id={ (id) "-fault" } { (text) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_stands_beside_its_field_and_the_first_has_the_focus() {
        let faults = [Fault::at("code", "wrong code"), Fault::at("name", "no such account")];
        let show =
            |id: &str| Input { id, name: id, hint: Some("help"), ..Input::default() }.show(&faults).into_string();
        let code = show("code");
        assert!(code.contains("<p class=\"fault\" id=\"code-fault\">Wrong code</p>"), "{code}");
        assert!(code.contains("aria-describedby=\"code-hint code-fault\" aria-invalid=\"true\" autofocus"), "{code}");
        let name = show("name");
        assert!(name.contains("No such account") && !name.contains("autofocus"), "{name}");
        let other = show("other");
        assert!(!other.contains("fault") && !other.contains("aria-invalid"), "{other}");
        let summary = summary(&faults).into_string();
        assert!(summary.contains("<a href=\"#code\">Wrong code</a>"), "{summary}");
    }
}
