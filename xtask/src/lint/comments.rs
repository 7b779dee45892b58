//! Checks that no sentence in a comment begins with a relative clause, unless the sentence is a question.

/// Openings of relative clauses, after which a reader has to look for the sentence's subject.
const OPENINGS: [&str; 12] = [
    "Who ",
    "Whom ",
    "Whose ",
    "What ",
    "Whoever ",
    "Whatever ",
    "Of what ",
    "Of whom ",
    "By whom ",
    "To whom ",
    "From whom ",
    "With what ",
];

/// Returns the line number and the text of each sentence in a comment of `text` that begins with a relative clause.
/// `marks` are the marks that begin comment lines in the file's language; the longest mark must come first.
pub fn relative_clauses(text: &str, marks: &[&str]) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    let mut block: Vec<(usize, &str)> = Vec::new();
    for (at, line) in text.lines().enumerate() {
        match comment(line, marks) {
            Some(words) if !words.is_empty() => block.push((at + 1, words)),
            _ => findings.extend(in_block(&std::mem::take(&mut block))),
        }
    }
    findings.extend(in_block(&block));
    findings
}

/// Returns the text of a comment line without its marker; `None` if the line is not a comment.
fn comment<'l>(line: &'l str, marks: &[&str]) -> Option<&'l str> {
    let line = line.trim_start();
    let words = marks.iter().find_map(|mark| line.strip_prefix(mark))?;
    Some(words.trim().trim_end_matches("*/").trim_end())
}

/// Returns the findings in consecutive comment lines, which form one text.
fn in_block(block: &[(usize, &str)]) -> Vec<(usize, String)> {
    let mut starts = Vec::new();
    let mut whole = String::new();
    for (number, words) in block {
        starts.push((whole.len(), *number));
        whole.push_str(words);
        whole.push(' ');
    }
    let line_of = |at: usize| starts.iter().rev().find(|(start, _)| *start <= at).map_or(0, |(_, number)| *number);
    let sentences = std::iter::once(0).chain(ends(&whole).map(|end| end + 2));
    let found = sentences.filter_map(|start| {
        let sentence = whole.get(start..)?;
        OPENINGS.iter().find(|opening| sentence.starts_with(**opening))?;
        let end =
            ends(sentence).find(|end| sentence[*end..].starts_with(['.', '?', '!'])).unwrap_or(sentence.len() - 1);
        let is_question = sentence[end..].starts_with('?');
        (!is_question).then(|| (line_of(start), sentence[..=end].trim_end().to_owned()))
    });
    found.collect()
}

/// Returns the positions of punctuation marks after which a sentence may begin, because a space follows them.
fn ends(text: &str) -> impl Iterator<Item = usize> {
    text.match_indices(['.', '?', '!', ':', ';']).map(|(at, _)| at).filter(|at| text[at + 1..].starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::relative_clauses;

    #[test]
    fn a_sentence_that_begins_with_a_relative_clause_is_found_with_its_line() {
        let text = "/// Drops the packet. Who\n/// sends it waits.\nlet what = 1; // What follows code is not looked at.\n    // Of whom it is.";
        let found = relative_clauses(text, &["///", "//"]);
        let found: Vec<_> = found.iter().map(|(line, words)| (*line, words.as_str())).collect();
        assert_eq!(found, [(1, "Who sends it waits."), (4, "Of whom it is.")]);
    }

    #[test]
    fn questions_and_other_words_are_left_alone() {
        let text = "# What to do?\n# Whole packets pass: whoever sent them.\n\n/* Whichever comes first. */";
        assert_eq!(relative_clauses(text, &["#", "/*"]), []);
    }
}
