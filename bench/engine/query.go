package main

import (
	"errors"
	"fmt"
	"strings"
)

// condition is one comparison that every document found has to pass.
type condition struct {
	operator string
	value    value
}

// query is a filter, checked once, with the conditions that hold for all that it finds.
type query struct {
	filter     document
	conditions map[string][]condition // by path, those of $and as well
}

// parse reads a filter. What it does not know is an error: it must not answer something else.
func parse(filter document) (query, error) {
	found := query{filter, map[string][]condition{}}
	return found, found.gather(filter, true)
}

func (q query) gather(filter document, holds bool) (err error) {
	failed := filter.each(func(name []byte, v value) bool {
		path := string(name)
		if path == "$and" || path == "$or" {
			for _, each := range document(v.data).values() {
				if err = q.gather(document(each.data), holds && path == "$and"); err != nil {
					return false
				}
			}
			return true
		}
		if strings.HasPrefix(path, "$") {
			err = fmt.Errorf("this engine does not know the operator %s", path)
			return false
		}
		for _, each := range conditionsOf(v) {
			if !operators[each.operator] {
				err = fmt.Errorf("this engine does not know the operator %s", each.operator)
				return false
			}
			if holds {
				q.conditions[path] = append(q.conditions[path], each)
			}
		}
		return true
	})
	if err == nil {
		err = failed
	}
	return err
}

// bound adds min and max of a find, which are bounds of the index on _id: they hold across types.
func (q query) bound(least, end document) error {
	for operator, bounds := range map[string]document{"$gte": least, "$lt": end} {
		if len(bounds) <= 5 {
			continue
		}
		id, isThere := bounds.get("_id")
		if !isThere || len(bounds.values()) > 1 || len(q.filter) > 5 {
			return errors.New("this engine knows min and max of the _id alone, without a filter")
		}
		q.conditions["_id"] = append(q.conditions["_id"], condition{operator, id})
	}
	return nil
}

var operators = map[string]bool{
	"$eq": true, "$ne": true, "$gt": true, "$gte": true, "$lt": true, "$lte": true, "$in": true,
	"$exists": true,
}

// conditionsOf returns what is asked of one field: operators, or to be equal.
func conditionsOf(v value) []condition {
	var found []condition
	if v.kind == kindDocument {
		document(v.data).each(func(name []byte, each value) bool {
			if len(name) == 0 || name[0] != '$' {
				return false
			}
			found = append(found, condition{string(name), each})
			return true
		})
	}
	if found == nil {
		found = []condition{{"$eq", v}}
	}
	return found
}

// equal returns what a field has to be equal to, where that is asked.
func (q query) equal(path string) (value, bool) {
	for _, each := range q.conditions[path] {
		if each.operator == "$eq" {
			return each.value, true
		}
		if each.operator == "$exists" && !each.value.isTrue() {
			return null, true // as the indexes have it
		}
	}
	return null, false
}

func (q query) matches(d document) bool {
	return matches(d, q.filter)
}

func matches(d, filter document) bool {
	is := true
	filter.each(func(name []byte, v value) bool {
		switch string(name) {
		case "$and":
			for _, each := range document(v.data).values() {
				is = is && matches(d, document(each.data))
			}
		case "$or":
			some := false
			for _, each := range document(v.data).values() {
				some = some || matches(d, document(each.data))
			}
			is = some
		default:
			found, isThere := d.lookup(string(name))
			for _, each := range conditionsOf(v) {
				is = is && each.holds(found, isThere)
			}
		}
		return is
	})
	return is
}

func (c condition) holds(found value, isThere bool) bool {
	switch c.operator {
	case "$exists":
		return isThere == c.value.isTrue()
	case "$ne":
		return !condition{"$eq", c.value}.holds(found, isThere)
	case "$in":
		for _, each := range document(c.value.data).values() {
			if (condition{"$eq", each}).holds(found, isThere) {
				return true
			}
		}
		return false
	}
	if c.compares(found) {
		return true
	}
	if found.kind == kindArray {
		for _, each := range document(found.data).values() {
			if c.compares(each) {
				return true
			}
		}
	}
	return false
}

func (c condition) compares(found value) bool {
	if ranks[found.kind] != ranks[c.value.kind] {
		return false
	}
	switch order := compare(found, c.value); c.operator {
	case "$eq":
		return order == 0
	case "$gt":
		return order > 0
	case "$gte":
		return order >= 0
	case "$lt":
		return order < 0
	default:
		return order <= 0
	}
}

// sorting is the fields that an answer is in order of; 1 ascending, -1 descending.
type sorting []struct {
	path      string
	direction int
}

func sortingOf(d document) sorting {
	var found sorting
	d.each(func(name []byte, v value) bool {
		found = append(found, struct {
			path      string
			direction int
		}{string(name), int(v.integer())})
		return true
	})
	return found
}

// compare returns below 0 if a comes first.
func (s sorting) compare(a, b document) int {
	for _, each := range s {
		first, _ := a.lookup(each.path)
		second, _ := b.lookup(each.path)
		if order := compare(first, second); order != 0 {
			return order * each.direction
		}
	}
	return 0
}

// byID returns the direction of an order that the _id alone decides; 0 if others do.
func (s sorting) byID() int {
	if len(s) > 0 && s[0].path == "_id" {
		return s[0].direction
	}
	return 0
}

// projected returns what a projection leaves of d: the fields that it names, or all others.
func projected(d, fields document) document {
	if len(fields) <= 5 {
		return d
	}
	named, includes, hasID := map[string]bool{}, false, true
	fields.each(func(name []byte, v value) bool {
		if string(name) == "_id" {
			hasID = v.isTrue()
			return true
		}
		outer, _, _ := strings.Cut(string(name), ".")
		named[outer], includes = true, v.isTrue()
		return true
	})
	if len(named) == 0 {
		includes = hasID // the _id alone, or all but that
	}
	out := &builder{}
	out.begin()
	d.each(func(name []byte, v value) bool {
		if string(name) == "_id" && hasID || string(name) != "_id" && named[string(name)] == includes {
			out.value(string(name), v)
		}
		return true
	})
	out.end()
	return document(out.bytes)
}
