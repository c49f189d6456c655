//! The terminal that a person sits at: raw while a command's terminal is shown on it, and as it
//! was afterwards, however that ends.

use std::sync::{Mutex, Once, PoisonError};

use rustix::stdio;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tine::client::TtySize;

/// The size for a command when there is no terminal here to ask.
const DEFAULT_SIZE: TtySize = TtySize { rows: 24, cols: 80 };

/// How the terminal was, while it is raw.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

/// Whether standard input is a terminal.
pub fn is_here() -> bool {
    isatty(stdio::stdin())
}

/// The size of the terminal here, or a usual one.
pub fn size() -> TtySize {
    let asked = [stdio::stdin(), stdio::stdout(), stdio::stderr()];
    let sizes = asked.into_iter().flat_map(tcgetwinsize);
    let size = sizes
        .into_iter()
        .find(|size| size.ws_row > 0 && size.ws_col > 0);
    size.map_or(DEFAULT_SIZE, |size| TtySize {
        rows: size.ws_row,
        cols: size.ws_col,
    })
}

/// The terminal in raw mode, until this is dropped. A panic restores it too, before its message.
pub struct Raw(());

impl Raw {
    /// Makes the terminal on standard input raw; `None` when there is none.
    pub fn enter() -> std::io::Result<Option<Self>> {
        if !is_here() {
            return Ok(None);
        }
        let before = tcgetattr(stdio::stdin())?;
        *lock() = Some(before);
        restore_on_panic();
        // Made now, so that the mode is restored even if the next step fails half way.
        let raw = Self(());
        raw.renew()?;
        Ok(Some(raw))
    }

    /// Makes it raw again, after the shell had it.
    pub fn renew(&self) -> std::io::Result<()> {
        let mut mode = tcgetattr(stdio::stdin())?;
        mode.make_raw();
        Ok(tcsetattr(stdio::stdin(), OptionalActions::Drain, &mode)?)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        restore();
    }
}

fn lock() -> std::sync::MutexGuard<'static, Option<Termios>> {
    BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn restore() {
    if let Some(before) = lock().take() {
        // A terminal that has gone needs no mode.
        let _ = tcsetattr(stdio::stdin(), OptionalActions::Drain, &before);
    }
}

/// A panic aborts, and drops nothing.
fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let next = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            next(info);
        }));
    });
}
