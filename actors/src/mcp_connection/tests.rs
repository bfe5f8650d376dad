//! Tests of the connection against a real child process.
