// Stands in for Juju's Terraform provider, which is in no package registry: it has the arguments
// that the documents of a version list (tests/data/inclusion), and it plans what the configuration
// says. It knows no model: it applies nothing, and an argument's value is never looked at.
//
//	TF_SCHEMAS=terraform-provider-juju.json terraform-provider-juju_v0.23.3
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
	"github.com/hashicorp/terraform-plugin-go/tftypes"
)

// By the name of a block, "" for the resource itself: its arguments, each like "required String".
type resource map[string]map[string]string

// What neither `validate` nor `plan` asks for is not there, and ends the program.
type provider struct {
	tfprotov6.ProviderServer
	resources map[string]*tfprotov6.Schema
}

func main() {
	_, version, _ := strings.Cut(filepath.Base(os.Args[0]), "_")
	resources, err := read(os.Getenv("TF_SCHEMAS"), version)
	if err != nil {
		log.Fatal(err)
	}
	serve := func() tfprotov6.ProviderServer { return provider{resources: resources} }
	if err := tf6server.Serve("registry.opentofu.org/juju/juju", serve); err != nil {
		log.Fatal(err)
	}
}

func read(file, version string) (map[string]*tfprotov6.Schema, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var versions map[string]map[string]resource
	if err := json.Unmarshal(content, &versions); err != nil {
		return nil, err
	}
	if versions[version] == nil {
		return nil, fmt.Errorf("%s: no provider of version %q", file, version)
	}
	schemas := map[string]*tfprotov6.Schema{}
	for name, found := range versions[version] {
		schemas[name] = &tfprotov6.Schema{Block: found.block("")}
	}
	return schemas, nil
}

func (r resource) block(name string) *tfprotov6.SchemaBlock {
	block := &tfprotov6.SchemaBlock{}
	for argument, how := range r[name] {
		need, kind, _ := strings.Cut(how, " ")
		switch kind {
		case "Block List", "Block Set":
			nesting := tfprotov6.SchemaNestedBlockNestingModeList
			if kind == "Block Set" {
				nesting = tfprotov6.SchemaNestedBlockNestingModeSet
			}
			block.BlockTypes = append(block.BlockTypes, &tfprotov6.SchemaNestedBlock{
				TypeName: argument, Block: r.block(argument), Nesting: nesting,
			})
			continue
		}
		attribute := &tfprotov6.SchemaAttribute{
			Name: argument, Required: need == "required", Optional: need == "optional",
		}
		switch kind {
		case "Attributes Set":
			attribute.NestedType = r.object(argument, tfprotov6.SchemaObjectNestingModeSet)
		case "Attributes Map":
			attribute.NestedType = r.object(argument, tfprotov6.SchemaObjectNestingModeMap)
		default:
			attribute.Type = typeOf(kind)
		}
		block.Attributes = append(block.Attributes, attribute)
	}
	return block
}

func (r resource) object(
	name string, nesting tfprotov6.SchemaObjectNestingMode,
) *tfprotov6.SchemaObject {
	return &tfprotov6.SchemaObject{Attributes: r.block(name).Attributes, Nesting: nesting}
}

func typeOf(kind string) tftypes.Type {
	if of, ok := strings.CutPrefix(kind, "Map of "); ok {
		return tftypes.Map{ElementType: typeOf(of)}
	}
	if of, ok := strings.CutPrefix(kind, "Set of "); ok {
		return tftypes.Set{ElementType: typeOf(of)}
	}
	known := map[string]tftypes.Type{
		"Boolean": tftypes.Bool, "Number": tftypes.Number, "String": tftypes.String,
	}
	found, ok := known[kind]
	if !ok {
		log.Fatalf("%q: expected a type such as String, Map of String or Block List", kind)
	}
	return found
}

func (p provider) GetProviderSchema(
	context.Context, *tfprotov6.GetProviderSchemaRequest,
) (*tfprotov6.GetProviderSchemaResponse, error) {
	nothing := &tfprotov6.Schema{Block: &tfprotov6.SchemaBlock{}}
	return &tfprotov6.GetProviderSchemaResponse{
		Provider: nothing, ResourceSchemas: p.resources,
	}, nil
}

func (p provider) ValidateProviderConfig(
	_ context.Context, asked *tfprotov6.ValidateProviderConfigRequest,
) (*tfprotov6.ValidateProviderConfigResponse, error) {
	return &tfprotov6.ValidateProviderConfigResponse{PreparedConfig: asked.Config}, nil
}

func (p provider) ValidateResourceConfig(
	context.Context, *tfprotov6.ValidateResourceConfigRequest,
) (*tfprotov6.ValidateResourceConfigResponse, error) {
	return &tfprotov6.ValidateResourceConfigResponse{}, nil
}

func (p provider) ConfigureProvider(
	context.Context, *tfprotov6.ConfigureProviderRequest,
) (*tfprotov6.ConfigureProviderResponse, error) {
	return &tfprotov6.ConfigureProviderResponse{}, nil
}

func (p provider) PlanResourceChange(
	_ context.Context, asked *tfprotov6.PlanResourceChangeRequest,
) (*tfprotov6.PlanResourceChangeResponse, error) {
	return &tfprotov6.PlanResourceChangeResponse{PlannedState: asked.ProposedNewState}, nil
}

func (p provider) StopProvider(
	context.Context, *tfprotov6.StopProviderRequest,
) (*tfprotov6.StopProviderResponse, error) {
	return &tfprotov6.StopProviderResponse{}, nil
}
