// Reads a compose file as docker compose does, and a Dockerfile as its builder does, with the linter's rules.
// Usage: check COMPOSE_FILE DOCKERFILE
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	if err := compose(os.Args[1]); err != nil {
		fail(os.Args[1], err)
	}
	if err := dockerfile(os.Args[2]); err != nil {
		fail(os.Args[2], err)
	}
}

func compose(path string) error {
	options, err := cli.NewProjectOptions([]string{path}, cli.WithoutEnvironmentResolution)
	if err != nil {
		return err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return err
	}
	for _, service := range project.Services {
		for _, volume := range service.Volumes {
			if volume.Type != "bind" {
				continue
			}
			if _, err := os.Stat(volume.Source); err != nil {
				return fmt.Errorf("service %s: %w", service.Name, err)
			}
		}
	}
	fmt.Printf("%s: %d services\n", path, len(project.Services))
	return nil
}

func dockerfile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		return err
	}
	warned := 0
	warn := func(rule, description, url, message string, location []parser.Range) {
		warned++
		fmt.Fprintf(os.Stderr, "%s: %s: %s\n", path, rule, message)
	}
	stages, _, err := instructions.Parse(parsed.AST, linter.New(&linter.Config{Warn: warn}))
	if err != nil {
		return err
	}
	if warned > 0 {
		return fmt.Errorf("%d warnings", warned)
	}
	fmt.Printf("%s: %d stages\n", path, len(stages))
	return nil
}

func fail(path string, err error) {
	fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
	os.Exit(1)
}
