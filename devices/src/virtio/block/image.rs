//! What a drive's bytes are in: one raw file, by io_uring, or layers, by a thread. The one becomes
//! the other while the guest runs, when a snapshot freezes what was written so far.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

use super::layered::Layered;
use super::layers::{Format, Layer, LayerError, commit};
use super::raw::Replacement;
use super::{Backend, BlockConfig, BlockError, Completion, Operation, RawFile, Token};

/// The backend of a drive that was opened from files.
pub struct Image {
    kind: Kind,
    event: Arc<EventFd>,
}

enum Kind {
    Raw(Box<RawFile>),
    Layered(Box<Layered>),
}

/// What takes an image's place.
pub(super) enum Next {
    /// The same raw file, perhaps of another size.
    Same(Replacement),
    Other(Image),
}

impl Image {
    /// Opens and locks what the configuration names.
    pub fn open(config: &BlockConfig) -> Result<Self, BlockError> {
        Self::open_with(config, event(config)?)
    }

    /// Takes layers that are open already, the lowest first.
    pub fn of(config: &BlockConfig, layers: Vec<Layer>) -> Result<Self, BlockError> {
        let writable = layers.last().map(Layer::is_writable);
        if let Some(top) = layers.last().filter(|_| writable == Some(config.read_only)) {
            let reason = match config.read_only {
                true => "the drive is read-only, and it is open to be written",
                false => "the drive is to be written, and it is not open for that",
            };
            return Err(of(config, top.unfit(reason)));
        }
        Self::of_layers(&config.id, layers, event(config)?).map_err(|err| of(config, err))
    }

    fn open_with(config: &BlockConfig, event: Arc<EventFd>) -> Result<Self, BlockError> {
        if config.format == Format::Raw && config.lower.is_empty() {
            return Ok(Self {
                kind: Kind::Raw(Box::new(RawFile::open_with(config, event.clone())?)),
                event,
            });
        }
        let open = || {
            let lower = config.lower.iter();
            let lower = lower.map(|lower| Layer::open(&lower.path, lower.format));
            let mut layers = lower.collect::<Result<Vec<_>, _>>()?;
            layers.push(match config.read_only {
                true => Layer::open(&config.path, config.format)?,
                false => Layer::open_writable(&config.path, config.format)?,
            });
            Self::of_layers(&config.id, layers, event)
        };
        open().map_err(|err| of(config, err))
    }

    fn of_layers(id: &str, layers: Vec<Layer>, event: Arc<EventFd>) -> Result<Self, LayerError> {
        Ok(Self {
            kind: Kind::Layered(Box::new(Layered::new(id, layers, event.clone())?)),
            event,
        })
    }

    /// Opens what is to take this image's place.
    pub(super) fn prepare(&self, config: &BlockConfig) -> Result<Next, BlockError> {
        match &self.kind {
            Kind::Raw(raw) if config.format == Format::Raw && config.lower.is_empty() => {
                match raw.prepare(config)? {
                    Replacement::File(file) => Ok(Next::Other(Self {
                        kind: Kind::Raw(file),
                        event: self.event.clone(),
                    })),
                    same => Ok(Next::Same(same)),
                }
            }
            _ => Self::open_with(config, self.event.clone()).map(Next::Other),
        }
    }

    /// Puts it in this image's place. Nothing is in flight.
    pub(super) fn replace(&mut self, by: Next) {
        match (by, &mut self.kind) {
            (Next::Other(image), _) => *self = image,
            (Next::Same(same), Kind::Raw(raw)) => raw.replace(same),
            (Next::Same(_), Kind::Layered(_)) => {}
        }
    }

    /// The layers' files once more, the lowest first.
    pub(super) fn layers(&self) -> Result<Vec<Layer>, LayerError> {
        match &self.kind {
            Kind::Raw(raw) => Ok(vec![raw.layer()?]),
            Kind::Layered(layered) => layered.layers(),
        }
    }

    /// The same when everything that was written is in them. Nothing is in flight.
    pub(super) fn flushed_layers(&self) -> Result<Vec<Layer>, LayerError> {
        if let Kind::Layered(layered) = &self.kind {
            layered.flush()?;
        }
        self.layers()
    }

    /// Freezes what there is, and goes on in `overlay` over it. Nothing is in flight. Gives the
    /// frozen layers, the lowest first; after an error all is as it was.
    pub(super) fn switch(&mut self, id: &str, overlay: Layer) -> Result<Vec<Layer>, LayerError> {
        let (mut lower, mut frozen) = (Vec::new(), Vec::new());
        for layer in self.flushed_layers()? {
            frozen.push(layer.try_clone()?.into_read_only());
            lower.push(layer.into_read_only());
        }
        lower.push(overlay);
        let next = Self::of_layers(id, lower, self.event.clone())?;
        // The last step that can fail. The others are shared already.
        if let Some(top) = frozen.last() {
            top.share()?;
        }
        *self = next;
        Ok(frozen)
    }

    /// Goes on with `merged` in the place of `instead`, which lie right below the top and are what it
    /// was made of; `below` is what the top's header is to call it. Nothing is in flight. Gives the
    /// paths of those that it replaces. After an error all is as it was.
    pub(super) fn replace_below_top(
        &mut self,
        id: &str,
        instead: &[Layer],
        merged: Layer,
        below: &str,
    ) -> Result<Vec<PathBuf>, LayerError> {
        let Kind::Layered(layered) = &self.kind else {
            return Err(merged.unfit("the drive has other layers by now"));
        };
        layered.settle()?;
        let mut layers = layered.layers()?;
        let top = layers.pop();
        let at = layers.len().checked_sub(instead.len());
        let (Some(top), Some(at)) = (top, at) else {
            return Err(merged.unfit("the drive has other layers by now"));
        };
        for (now, then) in layers[at..].iter().zip(instead) {
            if !now.is_file_of(then)? {
                return Err(merged.unfit("the drive has other layers by now"));
            }
        }
        let replaced = layers.drain(at..).map(|layer| layer.path().to_owned());
        let replaced = replaced.collect();
        layers.push(merged);
        // Before it is opened, as who opens it may keep its header in memory.
        top.rename_backing(below)?;
        layers.push(top);
        *self = Self::of_layers(id, layers, self.event.clone())?;
        Ok(replaced)
    }

    /// Takes the overlay back into the raw image that it lies over, which is the disk alone then.
    /// Nothing is in flight. Gives the overlay's file, which nobody needs any more; `None` when
    /// there is no such overlay. After an error all is as it was.
    pub(super) fn take_back(&mut self, id: &str) -> Result<Option<PathBuf>, LayerError> {
        let Kind::Layered(layered) = &self.kind else {
            return Ok(None);
        };
        layered.flush()?;
        let mut layers = layered.layers()?;
        let (Some(top), Some(base), None) = (layers.pop(), layers.pop(), layers.pop()) else {
            return Ok(None);
        };
        if base.format() != Format::Raw {
            return Ok(None);
        }
        let overlay = top.path().to_owned();
        let base = base.into_writable()?;
        let united = commit(top.into_read_only(), base, |_| ControlFlow::Continue(()))?;
        let raw = RawFile::of_layer(id, &united.into_writable()?, self.event.clone())?;
        self.kind = Kind::Raw(Box::new(raw));
        Ok(Some(overlay))
    }

    /// Whether requests go through io_uring; `None` before the first one.
    pub fn uses_io_uring(&self) -> Option<bool> {
        match &self.kind {
            Kind::Raw(raw) => raw.uses_io_uring(),
            Kind::Layered(_) => Some(false),
        }
    }

    fn backend(&mut self) -> &mut dyn Backend {
        match &mut self.kind {
            Kind::Raw(raw) => raw.as_mut(),
            Kind::Layered(layered) => layered.as_mut(),
        }
    }
}

impl Backend for Image {
    fn capacity(&self) -> u64 {
        match &self.kind {
            Kind::Raw(raw) => raw.capacity(),
            Kind::Layered(layered) => layered.capacity(),
        }
    }

    fn event(&self) -> &Arc<EventFd> {
        &self.event
    }

    fn submit(&mut self, token: Token, operation: Operation) {
        self.backend().submit(token, operation);
    }

    fn start(&mut self) {
        self.backend().start();
    }

    fn completed(&mut self, into: &mut Vec<Completion>) {
        self.backend().completed(into);
    }
}

fn event(config: &BlockConfig) -> Result<Arc<EventFd>, BlockError> {
    let event = EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC);
    let event = event.map_err(|source| BlockError::Events {
        drive: config.id.clone(),
        source,
    })?;
    Ok(Arc::new(event))
}

fn of(config: &BlockConfig, source: LayerError) -> BlockError {
    BlockError::Layer {
        drive: config.id.clone(),
        source,
    }
}
