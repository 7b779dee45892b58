//! Compression of blocks. A block is sent compressed only if compression makes it shorter (wire.md §9.3.2, §9.4). The
//! compressor keeps no data from one block to the next. The lengths of one flow's compressed blocks therefore reveal
//! nothing about the content of another flow.

use wire::seal::record::BLOCK_MAX;
use wire::seal::{BlockHead, Compression};
use zstd_safe::{CCtx, CParameter, DCtx};

/// zstd's level: one core can fill a path of 1 Gbit/s with it. Decision 47 lists how well other levels compress.
const LEVEL: i32 = 3;
/// Minimum length of a block that is compressed, in bytes. Compression saves little in a record of 1400 bytes, and
/// nothing in a record of 100 bytes.
const WORTH_MIN: usize = 256;
/// Length of each piece of the sample in bytes, and the number of pieces.
const SAMPLE: (usize, usize) = (1024, 4);
/// Maximum size of a compressed sample or block, in eighths of the original, with which compression pays.
const PAYS: usize = 7;
/// Number of consecutive blocks that did not pay after which the compressor tries a flow's blocks at the lowest rate:
/// one block in 64.
const MISSES_MAX: u8 = 6;

/// Condition under which a block is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The block is never compressed. This is the default, because the length of compressed data reveals something
    /// about the data.
    #[default]
    Never,
    /// The block is compressed only if a sample of it shrinks.
    Auto,
    /// Compression of the block is always tried. The block is sent compressed if it becomes shorter.
    Always,
}

/// The history of a flow's compression. With [`Mode::Auto`], the compressor tries the flow's blocks less and less often
/// as long as they don't become shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habit {
    misses: u8,
    skip: u8,
}

impl Habit {
    /// Reports whether to try the next block.
    fn tries(&mut self) -> bool {
        let tries = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        tries
    }

    fn note(&mut self, paid: bool) {
        self.misses = if paid { 0 } else { (self.misses + 1).min(MISSES_MAX) };
        self.skip = (1 << self.misses) - 1;
    }
}

/// Compresses the blocks of all flows of a thread, one block at a time. A compressor takes some hundred KiB of memory.
pub struct Compressor {
    zstd: CCtx<'static>,
    out: Vec<u8>,
    sample: Vec<u8>,
}

impl Compressor {
    /// Allocates the state; returns `None` if there is no memory for it.
    pub fn new() -> Option<Self> {
        let mut zstd = CCtx::try_create()?;
        zstd.set_parameter(CParameter::CompressionLevel(LEVEL)).ok()?;
        let most = zstd_safe::compress_bound(BLOCK_MAX).max(lz4_flex::block::get_maximum_output_size(BLOCK_MAX));
        Some(Self { zstd, out: vec![0; most], sample: Vec::new() })
    }

    /// Compresses a block ([`BlockHead`] and packet) by the method `how`. `habit` is the history of the block's flow.
    /// Returns `None` if the caller should send the block uncompressed: because of `mode` or `habit`, because the block
    /// does not become short enough, because the block is longer than [`BLOCK_MAX`], or because the library fails.
    pub fn compress(&mut self, mode: Mode, habit: &mut Habit, how: Compression, block: &[u8]) -> Option<&[u8]> {
        if block.len() > BLOCK_MAX {
            return None;
        }
        let most = match mode {
            Mode::Never => return None,
            Mode::Always => block.len() - usize::from(!block.is_empty()),
            Mode::Auto if block.len() < WORTH_MIN || !habit.tries() => return None,
            Mode::Auto if !self.sample_pays(block) => {
                habit.note(false);
                return None;
            }
            Mode::Auto => block.len() / 8 * PAYS,
        };
        let len = match how {
            Compression::Lz4 => lz4_flex::block::compress_into(block, &mut self.out).ok()?,
            Compression::Zstd => self.zstd.compress2(&mut self.out[..], block).ok()?,
        };
        let pays = len <= most;
        habit.note(pays);
        if pays { self.out.get(..len) } else { None }
    }

    /// Reports whether pieces from all over the block shrink with the fastest compression. The sample's length is
    /// bounded; the block's isn't.
    fn sample_pays(&mut self, block: &[u8]) -> bool {
        let (piece, count) = SAMPLE;
        if block.len() <= 2 * piece * count {
            // Compressing the block costs no more than a sample.
            return true;
        }
        self.sample.clear();
        for place in 0..count {
            let begin = (block.len() - piece) / (count - 1) * place;
            self.sample.extend_from_slice(block.get(begin..begin + piece).unwrap_or_default());
        }
        let len = lz4_flex::block::compress_into(&self.sample, &mut self.out);
        len.is_ok_and(|len| len <= self.sample.len() / 8 * PAYS)
    }
}

/// Decompresses blocks into a buffer of [`BLOCK_MAX`] bytes.
pub struct Decompressor {
    zstd: DCtx<'static>,
    out: Vec<u8>,
}

impl Decompressor {
    /// Allocates the state; returns `None` if there is no memory for it.
    pub fn new() -> Option<Self> {
        Some(Self { zstd: DCtx::try_create()?, out: vec![0; BLOCK_MAX] })
    }

    /// Decompresses a block by the method `how`, and returns the block's head and packet. Returns `None` if the block
    /// is `malformed` (wire.md §9.4.2): if it is too long after decompression, is incomplete, contains no packet, or if
    /// other bytes follow it.
    pub fn decompress(&mut self, how: Compression, bytes: &[u8]) -> Option<(BlockHead, &[u8])> {
        self.decompress_mut(how, bytes).map(|(head, packet)| (head, &*packet))
    }

    /// Decompresses like [`Self::decompress`], but returns the packet in a form that the caller can change.
    pub fn decompress_mut(&mut self, how: Compression, bytes: &[u8]) -> Option<(BlockHead, &mut [u8])> {
        let len = match how {
            Compression::Lz4 => lz4_flex::block::decompress_into(bytes, &mut self.out).ok()?,
            Compression::Zstd => {
                // The library would accept several frames, and skip some.
                if zstd_safe::find_frame_compressed_size(bytes).ok()? != bytes.len() {
                    return None;
                }
                self.zstd.decompress(&mut self.out[..], bytes).ok()?
            }
        };
        let block = self.out.get_mut(..len)?;
        let (head, _) = BlockHead::split(block)?;
        Some((head, block.get_mut(BlockHead::LEN..)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A block of words, similar to text.
    fn text(len: usize) -> Vec<u8> {
        let words = ["tunnel ", "printer ", "sealed ", "the ", "of ", "a verifier ", "1234 ", "\r\n"];
        let mut state = 7u64;
        let mut block = BlockHead { segment: 1400, partial: true }.encode().to_vec();
        while block.len() < len {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            block.extend(words[(state >> 40) as usize % words.len()].bytes());
        }
        block.truncate(len);
        block
    }

    /// A block that nothing shrinks.
    fn noise(len: usize) -> Vec<u8> {
        let mut state = 7u64;
        let mut block = BlockHead::default().encode().to_vec();
        block.resize_with(len, || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u8
        });
        block
    }

    fn ready() -> (Compressor, Decompressor) {
        (Compressor::new().expect("memory"), Decompressor::new().expect("memory"))
    }

    #[test]
    fn what_shrinks_comes_back_whole() {
        let (mut compressor, mut decompressor) = ready();
        for how in Compression::ALL {
            for len in [300, 1400, 8192, 8193, 65_000, BLOCK_MAX] {
                let block = text(len);
                for mode in [Mode::Auto, Mode::Always] {
                    let short = compressor.compress(mode, &mut Habit::default(), how, &block).expect("text shrinks");
                    assert!(short.len() < len);
                    let (head, packet) = decompressor.decompress(how, short).expect("whole");
                    assert_eq!((head.encode().as_slice(), packet), block.split_at(4));
                }
            }
        }
    }

    #[test]
    fn what_does_not_shrink_or_need_not_goes_as_it_is() {
        let (mut compressor, _) = ready();
        let mut habit = Habit::default();
        for how in Compression::ALL {
            assert!(compressor.compress(Mode::Never, &mut habit, how, &text(5000)).is_none());
            assert!(compressor.compress(Mode::Always, &mut habit, how, &noise(5000)).is_none());
            assert!(compressor.compress(Mode::Always, &mut habit, how, &[]).is_none());
            assert!(compressor.compress(Mode::Always, &mut habit, how, &vec![0; BLOCK_MAX + 1]).is_none());
            habit = Habit::default();
            assert!(compressor.compress(Mode::Auto, &mut habit, how, &text(WORTH_MIN - 1)).is_none());
            assert_eq!(habit, Habit::default(), "short ones say nothing about the flow");
        }
    }

    #[test]
    fn a_flow_that_does_not_shrink_is_tried_ever_more_rarely_and_again_when_it_does() {
        let (mut compressor, _) = ready();
        let mut habit = Habit::default();
        let mut tried = |habit: &mut Habit, block: &[u8]| {
            let before = *habit;
            let shrinks = compressor.compress(Mode::Auto, habit, Compression::Zstd, block).is_some();
            (before.skip == 0, shrinks)
        };
        let noise = noise(60_000);
        let tries: Vec<_> = (0..1000).filter(|_| tried(&mut habit, &noise).0).collect();
        assert!((15..30).contains(&tries.len()), "{tries:?}");
        let text = text(60_000);
        let until = (0..65).position(|_| tried(&mut habit, &text).1);
        assert!(until.is_some_and(|blocks| blocks <= 64));
        assert!((0..10).all(|_| tried(&mut habit, &text) == (true, true)));
    }

    #[test]
    fn a_block_that_would_become_too_long_is_an_error() {
        let (_, mut decompressor) = ready();
        let bomb = zeros(256 << 20);
        assert!(bomb.len() < BLOCK_MAX, "it is short enough to be sent: {}", bomb.len());
        assert!(decompressor.decompress(Compression::Zstd, &bomb).is_none());
        let bomb = lz4_flex::block::compress(&vec![0; 16 << 20]);
        assert!(decompressor.decompress(Compression::Lz4, &bomb[..BLOCK_MAX.min(bomb.len())]).is_none());
        for (how, len) in [(Compression::Lz4, BLOCK_MAX), (Compression::Zstd, BLOCK_MAX)] {
            let pack = |len: usize| match how {
                Compression::Lz4 => lz4_flex::block::compress(&vec![0; len]),
                Compression::Zstd => zeros(len),
            };
            assert!(decompressor.decompress(how, &pack(len)).is_some(), "the longest");
            assert!(decompressor.decompress(how, &pack(len + 1)).is_none(), "one byte more");
            assert!(decompressor.decompress(how, &pack(4)).is_none(), "no packet");
            let whole = pack(500);
            assert!(decompressor.decompress(how, &whole[..whole.len() - 1]).is_none(), "cut");
            assert!(decompressor.decompress(how, &[&whole[..], &[0]].concat()).is_none(), "a byte behind its end");
            assert!(decompressor.decompress(how, &[]).is_none());
        }
        let frame = zeros(500);
        assert!(decompressor.decompress(Compression::Zstd, &frame.repeat(2)).is_none(), "two frames");
        let skipped = [&[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0][..], &frame].concat();
        assert!(decompressor.decompress(Compression::Zstd, &skipped).is_none(), "a frame to be skipped");
    }

    /// One frame of compressed zeros.
    fn zeros(len: usize) -> Vec<u8> {
        let mut out = vec![0; zstd_safe::compress_bound(len)];
        let len = zstd_safe::compress(&mut out[..], &vec![0; len], LEVEL).expect("there is room");
        out.truncate(len);
        out
    }

    proptest! {
        #[test]
        fn noise_unpacks_to_nothing_or_to_no_more_than_a_block(noise in prop::collection::vec(any::<u8>(), 0..500)) {
            let (_, mut decompressor) = ready();
            for how in Compression::ALL {
                if let Some((_, packet)) = decompressor.decompress(how, &noise) {
                    prop_assert!(packet.len() + BlockHead::LEN <= BLOCK_MAX);
                }
            }
        }
    }
}
