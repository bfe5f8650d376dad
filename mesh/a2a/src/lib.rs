//! A2A as Towline speaks it: conversion, errors, and a client that streams and resumes.
