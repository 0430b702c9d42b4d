package target

import (
	"context"

	coordinatorv1 "staddle.internal/proto/gen/staddle/coordinator/v1"
	resourcev1 "staddle.internal/proto/gen/staddle/resource/v1"

	"staddle.internal/kit/fault"

	"staddle.internal/cli/internal/exit"
)

// PutSecret makes a secret or changes it.
func (c *Cluster) PutSecret(ctx context.Context, name string, entries []*resourcev1.SecretEntry, replace bool) (*coordinatorv1.Secret, error) {
	resp, err := c.secrets.PutSecret(ctx, &coordinatorv1.PutSecretRequest{Name: name, Entries: entries, Replace: replace})
	if err != nil {
		return nil, wrap(err, "put secret %s", name)
	}
	return resp.GetSecret(), nil
}

// DeleteSecret removes a secret; one that is gone is a success.
func (c *Cluster) DeleteSecret(ctx context.Context, name string, force bool) error {
	_, err := c.secrets.DeleteSecret(ctx, &coordinatorv1.DeleteSecretRequest{Name: name, Force: force})
	if err == nil {
		return nil
	}
	err = wrap(err, "delete secret %s", name)
	if fault.Reason(err) == "IN_USE" {
		return exit.Try(err, "remove them first, or staddle secret rm --force %s", name)
	}
	return err
}

// Secrets returns what secrets there are.
func (c *Cluster) Secrets(ctx context.Context) ([]*coordinatorv1.Secret, error) {
	var out []*coordinatorv1.Secret
	for token := ""; ; {
		page, err := c.secrets.ListSecrets(ctx, &coordinatorv1.ListSecretsRequest{PageSize: pageSize, PageToken: token})
		if err != nil {
			return nil, wrap(err, "list secrets")
		}
		out = append(out, page.GetSecrets()...)
		if token = page.GetNextPageToken(); token == "" {
			return out, nil
		}
	}
}

// RotateSecretKey has all secrets encrypted with a new key.
func (c *Cluster) RotateSecretKey(ctx context.Context) (*coordinatorv1.RotateSecretKeyResponse, error) {
	resp, err := c.secrets.RotateSecretKey(ctx, &coordinatorv1.RotateSecretKeyRequest{})
	if err != nil {
		return nil, wrap(err, "rotate the key of secrets")
	}
	return resp, nil
}
