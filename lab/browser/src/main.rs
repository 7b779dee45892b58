//! Takes pictures of the console's pages: in a wide window and in a phone's width, each in light and in dark colours.

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use browser::Browser;
use browser::console::{Look, PAGES, Scene, Who, question};
use clap::Parser;

/// Size limit of a picture in bytes, because pictures are committed to the repository.
const LARGEST: usize = 100_000;

/// Returns the ending of the file names of pictures with this appearance.
const fn ending(look: Look) -> &'static str {
    match (look.phone, look.dark) {
        (false, false) => "",
        (false, true) => "-dark",
        (true, false) => "-phone",
        (true, true) => "-phone-dark",
    }
}

/// Take pictures of the console's pages; needs root
#[derive(Parser)]
#[command(name = "screenshots")]
struct Args {
    /// The folder for the pictures
    folder: PathBuf,
}

fn main() -> ExitCode {
    match take(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("screenshots: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn take(args: &Args) -> Result<()> {
    let scene = Scene::new()?;
    fs::create_dir_all(&args.folder)?;
    let browser = Browser::start(scene.desk())?;
    for who in [Who::Anybody, Who::Person, Who::Administrator] {
        scene.become_one(&browser, who)?;
        for page in PAGES.iter().filter(|page| page.who == who) {
            for look in Look::ALL {
                look.of(&browser)?;
                scene.open(&browser, page)?;
                keep(&args.folder, page.name, look, &browser)?;
            }
        }
    }
    // This page follows a login at the identity provider, so that it has no address of its own.
    scene.become_one(&browser, Who::Anybody)?;
    let _login = question(&scene, &browser)?;
    for look in Look::ALL {
        look.of(&browser)?;
        keep(&args.folder, "approval", look, &browser)?;
    }
    Ok(())
}

/// Takes a picture of the open page, whose name is `page`, and writes it to a file.
fn keep(folder: &Path, page: &str, look: Look, browser: &Browser<'_>) -> Result<()> {
    let file = folder.join(format!("{page}{}.png", ending(look)));
    let picture = packed(&look.picture(browser)?)?;
    ensure!(
        picture.len() <= LARGEST,
        "{} would have {} bytes, but at most {LARGEST} are allowed",
        file.display(),
        picture.len()
    );
    fs::write(&file, picture).with_context(|| file.display().to_string())?;
    println!("{}", file.display());
    Ok(())
}

/// Returns the same picture in fewer bytes: without transparency, and with at most 256 colours. The most frequent
/// colours stay; every other colour becomes the nearest of these.
fn packed(picture: &[u8]) -> Result<Vec<u8>> {
    let mut reader = png::Decoder::new(Cursor::new(picture)).read_info()?;
    let mut pixels = vec![0; reader.output_buffer_size().context("the picture has more pixels than a page can have")?];
    let frame = reader.next_frame(&mut pixels)?;
    let step = frame.color_type.samples();
    ensure!(step >= 3 && frame.bit_depth == png::BitDepth::Eight, "a picture in {:?}", frame.color_type);
    let colours: Vec<Colour> = pixels.chunks_exact(step).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect();
    let mut counts: BTreeMap<Colour, usize> = BTreeMap::new();
    for colour in &colours {
        *counts.entry(*colour).or_default() += 1;
    }
    let mut palette: Vec<_> = counts.keys().copied().collect();
    palette.sort_by_key(|colour| std::cmp::Reverse(counts[colour]));
    palette.truncate(256);
    let nearest = |colour: Colour| {
        let distances = palette.iter().zip(0..=u8::MAX).map(|(known, number)| (distance(*known, colour), number));
        distances.min().map_or(0, |(_, number)| number)
    };
    let numbers: BTreeMap<_, _> = counts.keys().map(|colour| (*colour, nearest(*colour))).collect();
    let data: Vec<u8> = colours.iter().map(|colour| numbers[colour]).collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, frame.width, frame.height);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::High);
    // Neighbouring numbers of the palette say nothing about each other, so filters, which subtract them, do harm.
    encoder.set_filter(png::Filter::NoFilter);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_palette(palette.concat());
    encoder.write_header()?.write_image_data(&data)?;
    Ok(bytes)
}

/// Red, green, blue.
type Colour = [u8; 3];

fn distance(one: Colour, other: Colour) -> u32 {
    one.iter().zip(other).map(|(one, other)| u32::from(one.abs_diff(other)).pow(2)).sum()
}
