package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// The types of BSON that are treated each in its own way; the others are kept as bytes.
const (
	kindDouble    = 0x01
	kindString    = 0x02
	kindDocument  = 0x03
	kindArray     = 0x04
	kindBinary    = 0x05
	kindUndefined = 0x06
	kindObjectID  = 0x07
	kindBool      = 0x08
	kindDate      = 0x09
	kindNull      = 0x0A
	kindRegex     = 0x0B
	kindInt32     = 0x10
	kindTimestamp = 0x11
	kindInt64     = 0x12
	kindDecimal   = 0x13
	kindMin       = 0xFF
	kindMax       = 0x7F
)

// fixed has the sizes of the types whose values have one size.
var fixed = map[byte]int{
	kindDouble: 8, kindUndefined: 0, kindObjectID: 12, kindBool: 1, kindDate: 8, kindNull: 0,
	kindInt32: 4, kindTimestamp: 8, kindInt64: 8, kindDecimal: 16, kindMin: 0, kindMax: 0,
}

// ranks has the order in which values of different types are sorted.
var ranks = map[byte]int{
	kindMin: 0, kindUndefined: 1, kindNull: 1, kindDouble: 2, kindInt32: 2, kindInt64: 2,
	kindDecimal: 2, kindString: 3, kindDocument: 4, kindArray: 5, kindBinary: 6, kindObjectID: 7,
	kindBool: 8, kindDate: 9, kindTimestamp: 10, kindRegex: 11, kindMax: 12,
}

// document is the bytes of one document, or of an array, with its length and its last zero.
type document []byte

// value is one value, as its bytes stand in a document.
type value struct {
	kind byte
	data []byte
}

var null = value{kind: kindNull}

// sized returns the document that bytes begin with.
func sized(rest []byte) ([]byte, error) {
	if len(rest) < 5 {
		return nil, io.ErrUnexpectedEOF
	}
	size := int(int32(binary.LittleEndian.Uint32(rest)))
	if size < 5 || size > len(rest) {
		return nil, io.ErrUnexpectedEOF
	}
	return rest[:size], nil
}

func cstring(rest []byte) (text, after []byte, err error) {
	end := bytes.IndexByte(rest, 0)
	if end < 0 {
		return nil, nil, io.ErrUnexpectedEOF
	}
	return rest[:end], rest[end+1:], nil
}

// sizeOf returns how many bytes a value of this type has that rest begins with.
func sizeOf(kind byte, rest []byte) (int, error) {
	if size, ok := fixed[kind]; ok {
		return size, nil
	}
	if kind == kindRegex {
		_, after, err := cstring(rest)
		if err != nil {
			return 0, err
		}
		_, after, err = cstring(after)
		return len(rest) - len(after), err
	}
	if len(rest) < 4 {
		return 0, io.ErrUnexpectedEOF
	}
	size := int(int32(binary.LittleEndian.Uint32(rest)))
	switch kind {
	case kindDocument, kindArray:
		return size, nil
	case kindBinary:
		return size + 5, nil
	case kindString:
		return size + 4, nil
	}
	return 0, fmt.Errorf("a value of type %#x, which this engine does not know", kind)
}

// each calls work with the fields of d until it returns false.
func (d document) each(work func(name []byte, v value) bool) error {
	if len(d) < 5 {
		return nil
	}
	for rest := d[4:]; rest[0] != 0; {
		kind := rest[0]
		name, after, err := cstring(rest[1:])
		if err != nil {
			return err
		}
		size, err := sizeOf(kind, after)
		if err != nil {
			return err
		}
		if size < 0 || size >= len(after) {
			return io.ErrUnexpectedEOF
		}
		if !work(name, value{kind, after[:size]}) {
			return nil
		}
		rest = after[size:]
	}
	return nil
}

// get returns the field of this name; one that is not there is null.
func (d document) get(name string) (found value, isThere bool) {
	found = null
	d.each(func(each []byte, v value) bool {
		if string(each) == name {
			found, isThere = v, true
		}
		return !isThere
	})
	return
}

// lookup returns what is at a path of names with points between them.
func (d document) lookup(path string) (value, bool) {
	if found, ok := d.get(path); ok {
		return found, true
	}
	for place := 0; place < len(path); place++ {
		if path[place] != '.' {
			continue
		}
		inner, ok := d.get(path[:place])
		if !ok || inner.kind != kindDocument {
			return null, false
		}
		return document(inner.data).lookup(path[place+1:])
	}
	return null, false
}

// values returns the values of an array, or of a document.
func (d document) values() []value {
	var all []value
	d.each(func(_ []byte, v value) bool {
		all = append(all, v)
		return true
	})
	return all
}

func (v value) text() string {
	if v.kind != kindString {
		return ""
	}
	return string(v.data[4 : len(v.data)-1])
}

// integer returns a number without its fraction; what is no number is 0, and true is 1.
func (v value) integer() int64 {
	switch v.kind {
	case kindInt32:
		return int64(int32(binary.LittleEndian.Uint32(v.data)))
	case kindInt64, kindDate:
		return int64(binary.LittleEndian.Uint64(v.data))
	case kindDouble:
		return int64(v.float())
	case kindBool:
		return int64(v.data[0])
	}
	return 0
}

func (v value) float() float64 {
	if v.kind == kindDouble {
		return math.Float64frombits(binary.LittleEndian.Uint64(v.data))
	}
	return float64(v.integer())
}

func (v value) isTrue() bool {
	return v.integer() != 0
}

// key returns bytes that two values have in common if they are equal: 1, 1.0 and NumberLong(1).
func (v value) key() string {
	rank := byte(ranks[v.kind])
	switch v.kind {
	case kindInt32, kindInt64, kindDouble:
		if number := v.float(); v.kind == kindDouble && number != math.Trunc(number) {
			return string(append([]byte{rank, 1}, v.data...))
		}
		return string(binary.BigEndian.AppendUint64([]byte{rank, 0}, uint64(v.integer())))
	}
	return string(append([]byte{rank}, v.data...))
}

// compare returns below 0, 0 or above it. Documents and arrays are compared as bytes, which is
// enough to tell whether they are equal.
func compare(a, b value) int {
	if difference := ranks[a.kind] - ranks[b.kind]; difference != 0 {
		return difference
	}
	switch a.kind {
	case kindDouble, kindInt32, kindInt64:
		if a.kind == kindDouble || b.kind == kindDouble {
			return order(a.float(), b.float())
		}
		return order(a.integer(), b.integer())
	case kindDate:
		return order(a.integer(), b.integer())
	case kindTimestamp:
		return order(binary.LittleEndian.Uint64(a.data), binary.LittleEndian.Uint64(b.data))
	case kindString:
		return bytes.Compare(a.data[4:], b.data[4:])
	}
	return bytes.Compare(a.data, b.data)
}

func order[T int64 | uint64 | float64](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// builder writes documents, one inside the other.
type builder struct {
	bytes []byte
	open  []int // where the lengths of those that are not ended stand
}

func (b *builder) begin() {
	b.open = append(b.open, len(b.bytes))
	b.bytes = append(b.bytes, 0, 0, 0, 0)
}

func (b *builder) end() {
	last := len(b.open) - 1
	start := b.open[last]
	b.open = b.open[:last]
	b.bytes = append(b.bytes, 0)
	binary.LittleEndian.PutUint32(b.bytes[start:], uint32(len(b.bytes)-start))
}

func (b *builder) name(kind byte, name string) {
	b.bytes = append(b.bytes, kind)
	b.bytes = append(b.bytes, name...)
	b.bytes = append(b.bytes, 0)
}

func (b *builder) value(name string, v value) {
	b.name(v.kind, name)
	b.bytes = append(b.bytes, v.data...)
}

func (b *builder) document(name string, content func()) {
	b.name(kindDocument, name)
	b.begin()
	content()
	b.end()
}

func (b *builder) array(name string, content func()) {
	b.name(kindArray, name)
	b.begin()
	content()
	b.end()
}

func (b *builder) text(name, text string) {
	b.name(kindString, name)
	b.bytes = binary.LittleEndian.AppendUint32(b.bytes, uint32(len(text)+1))
	b.bytes = append(append(b.bytes, text...), 0)
}

func (b *builder) int32(name string, number int) {
	b.name(kindInt32, name)
	b.bytes = binary.LittleEndian.AppendUint32(b.bytes, uint32(number))
}

func (b *builder) int64(name string, number int64) {
	b.name(kindInt64, name)
	b.bytes = binary.LittleEndian.AppendUint64(b.bytes, uint64(number))
}

func (b *builder) timestamp(name string, number uint64) {
	b.name(kindTimestamp, name)
	b.bytes = binary.LittleEndian.AppendUint64(b.bytes, number)
}

func (b *builder) date(name string, milliseconds int64) {
	b.name(kindDate, name)
	b.bytes = binary.LittleEndian.AppendUint64(b.bytes, uint64(milliseconds))
}

func (b *builder) double(name string, number float64) {
	b.name(kindDouble, name)
	b.bytes = binary.LittleEndian.AppendUint64(b.bytes, math.Float64bits(number))
}

func (b *builder) bool(name string, is bool) {
	b.name(kindBool, name)
	if is {
		b.bytes = append(b.bytes, 1)
	} else {
		b.bytes = append(b.bytes, 0)
	}
}
