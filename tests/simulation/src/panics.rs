//! Panics inside of nodes: their runtimes catch them, and here they are not forgotten.

use std::{
    panic,
    sync::{Mutex, PoisonError},
};

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes each panic from here on.
pub fn watch() {
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(format!("panic: {panic}").replace('\n', " "));
        told(panic);
    }));
}

/// All that were seen.
pub fn seen() -> Vec<String> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
