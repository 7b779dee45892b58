//! The code blocks of a document whose fences say where their lines go: ```` ```sh server ````.

use anyhow::{Result, ensure};

/// A code block.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    /// Number of the line with the opening fence.
    pub line: usize,
    /// The heading above it.
    pub section: String,
    /// The words after the opening fence: language, place, and how the lines are run there.
    pub words: Vec<String>,
    pub text: String,
}

impl Block {
    /// Returns the command lines of the block. A line that ends with a backslash continues on the next one.
    pub fn commands(&self) -> Vec<String> {
        let text = self.text.replace("\\\n", " ");
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

/// Returns the code blocks of a Markdown document.
pub fn blocks(markdown: &str) -> Result<Vec<Block>> {
    let (mut blocks, mut section): (Vec<Block>, _) = (Vec::new(), String::new());
    let mut inside = false;
    for (number, line) in markdown.lines().enumerate().map(|(index, line)| (index + 1, line)) {
        match line.trim_start().strip_prefix("```") {
            Some(end) if inside => {
                ensure!(end.is_empty(), "line {number}: a fence in a code block");
                inside = false;
            }
            Some(words) => {
                let words: Vec<_> = words.split_whitespace().map(str::to_owned).collect();
                ensure!(words.len() > 1, "line {number}: say after the fence where the block goes, as in ```sh server");
                blocks.push(Block { line: number, section: section.clone(), words, text: String::new() });
                inside = true;
            }
            None if inside => {
                if let Some(block) = blocks.last_mut() {
                    block.text += line;
                    block.text += "\n";
                }
            }
            None => {
                if let Some(heading) = line.strip_prefix("## ") {
                    section = heading.to_owned();
                }
            }
        }
    }
    ensure!(!inside, "the last code block has no end");
    Ok(blocks)
}

#[test]
fn blocks_have_their_section_their_place_and_whole_commands() {
    let markdown = "# A\n## On B\n\n```sh server\na \\\n    b  # c\n\nd\n```\ntext\n```toml /etc/x\n# y\n```\n";
    let blocks = blocks(markdown).unwrap();
    assert_eq!(blocks.len(), 2);
    assert_eq!((blocks[0].line, blocks[0].section.as_str()), (4, "On B"));
    assert_eq!(blocks[0].words, ["sh", "server"]);
    assert_eq!(blocks[0].commands(), ["a      b  # c", "d"]);
    assert_eq!(blocks[1].text, "# y\n");
}

#[test]
fn a_block_without_a_place_is_an_error_that_names_the_line() {
    let error = blocks("text\n```\nls\n```\n").unwrap_err().to_string();
    assert!(error.starts_with("line 2: "), "{error}");
    assert!(blocks("```sh server\nls\n").is_err());
}
