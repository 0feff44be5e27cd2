//go:build tools

// Package tools names the program that this module is there to pin.
package tools

import _ "github.com/tsenart/vegeta/v12"
