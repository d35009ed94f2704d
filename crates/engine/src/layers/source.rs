//! What a template is made from, and how its tree gets into a draft.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufReader, Read},
    os::fd::AsFd,
    path::PathBuf,
    str::FromStr,
};

use cabana_guest::{
    IdMap,
    tree::{self, Allowance},
};
use cabana_sandbox::{Error, Overrides, Result};
use rustix::fs::FileType;

use super::{
    debian, failed,
    image::{self, ImageForm},
    rooted::kind,
    store::Store,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateSource {
    /// A root file system as it lies there: its own file system only, what is mounted below is left out.
    Directory(PathBuf),
    /// A tar of a root file system, plain or compressed with gzip or zstd.
    Tar(PathBuf),
    /// The same from standard input.
    Stdin,
    /// A fresh Debian system, from the machine's own package sources.
    Debian { suite: String, packages: Vec<String> },
    /// A container image. `reference` is its name where there are several in one place.
    Image { form: ImageForm, path: PathBuf, reference: Option<String> },
}

/// How far the making of a template is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress<'a> {
    /// Bytes of the tree that are written, in all.
    Copied(u64),
    /// A line of the program that does the work.
    Says(&'a str),
    /// All is there; it is read once more for its digest.
    Checking,
}

impl FromStr for TemplateSource {
    type Err = Error;

    /// `-`, `debian:SUITE[,PACKAGE…]`, `oci:PATH`, `docker-archive:PATH`, a directory or a tar file.
    fn from_str(text: &str) -> Result<Self> {
        if text == "-" {
            return Ok(Self::Stdin);
        }
        if let Some(set) = text.strip_prefix("debian:") {
            let mut words = set.split(',').map(str::to_owned);
            let suite = words.next().unwrap_or_default();
            let packages: Vec<_> = words.collect();
            return debian::check_names(&suite, &packages).map(|()| Self::Debian { suite, packages });
        }
        let form = ImageForm::ALL.into_iter().find_map(|form| {
            let path = text.strip_prefix(&form.to_string())?.strip_prefix(':')?;
            Some((form, PathBuf::from(path)))
        });
        if let Some((form, path)) = form {
            return match std::fs::metadata(&path) {
                Ok(_) => Ok(Self::Image { form, path, reference: None }),
                Err(e) => {
                    Err(Error::invalid("from", format!("{text}: {e}; after `{form}:` comes the path of an image")))
                }
            };
        }
        let path = PathBuf::from(text);
        match std::fs::metadata(&path) {
            Ok(found) if found.is_dir() => Ok(Self::Directory(path)),
            Ok(_) => Ok(Self::Tar(path)),
            Err(e) => {
                let which = "give a directory, a tar file, `-`, debian:SUITE, oci:PATH or docker-archive:PATH";
                Err(Error::invalid("from", format!("{text}: {e}; {which}")))
            }
        }
    }
}

impl TemplateSource {
    /// Which of several images is meant.
    pub fn with_reference(self, name: String) -> Result<Self> {
        match self {
            Self::Image { form, path, .. } => Ok(Self::Image { form, path, reference: Some(name) }),
            _ => Err(Error::invalid(
                "ref",
                "only what is given as oci:PATH or docker-archive:PATH can have several images",
            )),
        }
    }

    /// As it is written down in the template.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Directory(path) | Self::Tar(path) => path.display().to_string(),
            Self::Stdin => "-".into(),
            Self::Debian { suite, packages } => {
                packages.iter().fold(format!("debian:{suite}"), |text, package| text + "," + package)
            }
            Self::Image { form, path, reference } => {
                let reference = reference.as_ref().map(|name| format!(" --ref {name}")).unwrap_or_default();
                format!("{form}:{}{reference}", path.display())
            }
        }
    }

    /// Fills the empty directory `into`, and tells what the source suggests for commands. `avoid` is the data directory, which
    /// a copy of `/` must not copy into itself.
    pub(crate) fn fill(
        &self,
        name: &str,
        into: &File,
        store: &Store,
        avoid: &dyn AsFd,
        on_progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<Overrides> {
        let ids = store.ids();
        match self {
            Self::Directory(path) => copy_directory(path, into, ids, avoid, on_progress),
            Self::Tar(path) => {
                let file = File::open(path).map_err(|e| Error::invalid("from", format!("{}: {e}", path.display())))?;
                import_own(&mut decoded(file)?, into, ids, on_progress)
            }
            Self::Stdin => import_own(&mut decoded(io::stdin().lock())?, into, ids, on_progress),
            Self::Debian { suite, packages } => {
                let on_progress = RefCell::new(on_progress);
                debian::stream(name, suite, packages, &on_progress, &mut |tar| {
                    import_own(tar, into, ids, &mut |progress| on_progress.borrow_mut()(progress))
                })
            }
            Self::Image { form, path, reference } => {
                let image = (*form, path.as_path(), reference.as_deref());
                return image::fill(name, image, store, into, on_progress);
            }
        }?;
        Ok(Overrides::default())
    }
}

fn copy_directory(
    path: &PathBuf,
    into: &File,
    ids: IdMap,
    avoid: &dyn AsFd,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Result<()> {
    let from = File::open(path).map_err(|e| Error::invalid("from", format!("{}: {e}", path.display())))?;
    let look = |fd: &dyn AsFd| rustix::fs::fstat(fd.as_fd()).map_err(|e| failed("looking at the directory")(e.into()));
    let (top, avoid) = (look(&from)?, look(avoid)?);
    if kind(&top) != FileType::Directory {
        return Err(Error::invalid("from", format!("{} is not a directory", path.display())));
    }
    let mut keep = |_: &std::path::Path, stat: &rustix::fs::Stat| {
        // Only directories tell: overlayfs shows files under devices of their own.
        kind(stat) != FileType::Directory
            || (stat.st_dev == top.st_dev && (stat.st_dev, stat.st_ino) != (avoid.st_dev, avoid.st_ino))
    };
    tree::copy(from.as_fd(), into.as_fd(), ids, &mut keep, &mut |bytes| on_progress(Progress::Copied(bytes)))
        .map_err(failed("copying the directory"))
}

/// Of an operator, who may end it.
fn import_own(tar: &mut dyn Read, into: &File, ids: IdMap, on_progress: &mut dyn FnMut(Progress<'_>)) -> Result<()> {
    import(tar, into, ids, &mut Allowance::of_holes(u64::MAX), on_progress)
}

pub(super) fn import(
    tar: &mut dyn Read,
    into: &File,
    ids: IdMap,
    left: &mut Allowance,
    on_progress: &mut dyn FnMut(Progress<'_>),
) -> Result<()> {
    /// Beyond the end of a tar lies its padding. Whoever writes it is let finish, but not for ever.
    const PADDING: u64 = 16 << 20;
    tree::import_tar(into.as_fd(), tar, ids, left, &mut |bytes| on_progress(Progress::Copied(bytes)))?;
    io::copy(&mut tar.take(PADDING), &mut io::sink()).map_err(|e| Error::Archive(e.to_string()))?;
    Ok(())
}

/// From elsewhere: what a few bytes unpack to, holes included, has an end.
pub(super) fn unpack_sent(tar: &mut dyn Read, most: u64, into: &File, ids: IdMap) -> Result<()> {
    let (mut bounded, mut left) = (Bounded::new(decoded(tar)?, most), Allowance::of_holes(most));
    let unpacked = import(&mut bounded, into, ids, &mut left, &mut |_| {});
    match unpacked {
        Ok(()) if !bounded.over && most - left.holes <= bounded.left => Ok(()),
        Err(error) if !bounded.over => Err(error),
        _ => Err(Error::TooLarge { cap: most }),
    }
}

pub(super) struct Bounded<R> {
    from: R,
    pub(super) left: u64,
    pub(super) over: bool,
}

impl<R> Bounded<R> {
    pub(super) fn new(from: R, left: u64) -> Self {
        Self { from, left, over: false }
    }
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(into)?;
        match self.left.checked_sub(read as u64) {
            Some(left) => {
                self.left = left;
                Ok(read)
            }
            None => {
                self.over = true;
                Err(io::ErrorKind::FileTooLarge.into())
            }
        }
    }
}

/// The tar itself, whatever it is packed in: what it is, its first bytes say and not its name.
pub(super) fn decoded<'a>(from: impl Read + 'a) -> Result<Box<dyn Read + 'a>> {
    const HEAD: usize = 6;
    /// A few bytes may ask for all of it. It is what zstd unpacks unless it is told otherwise.
    const MAX_WINDOW_LOG: u32 = 27;
    let mut from = BufReader::with_capacity(256 << 10, from);
    let mut head = Vec::with_capacity(HEAD);
    from.by_ref().take(HEAD as u64).read_to_end(&mut head).map_err(failed("reading the archive"))?;
    let whole = io::Cursor::new(head.clone()).chain(from);
    match head.as_slice() {
        [0x1f, 0x8b, ..] => Ok(Box::new(flate2::read::MultiGzDecoder::new(whole))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut zstd = zstd::stream::read::Decoder::new(whole).map_err(failed("reading the archive"))?;
            zstd.window_log_max(MAX_WINDOW_LOG).map_err(failed("reading the archive"))?;
            Ok(Box::new(zstd))
        }
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Err(unknown_packing("xz")),
        [b'B', b'Z', b'h', ..] => Err(unknown_packing("bzip2")),
        _ => Ok(Box::new(whole)),
    }
}

fn unknown_packing(what: &str) -> Error {
    Error::Archive(format!("it is packed with {what}: unpack it first, or pack it with gzip or zstd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_zstd_has_a_largest_size() {
        // An empty frame that asks for a window of two to the power of this.
        let frame = |log: u8| [0x28, 0xb5, 0x2f, 0xfd, 0, (log - 10) << 3, 1, 0, 0];
        let read = |log| decoded(io::Cursor::new(frame(log))).unwrap().read_to_end(&mut Vec::new());
        assert_eq!(read(27).unwrap(), 0, "as zstd itself unpacks");
        assert!(read(28).is_err() && read(31).is_err());
    }
}
