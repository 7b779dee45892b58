// An OpenID provider for scenarios with logins: oidc-provider, which implements the protocol, and a login page. It
// reads users, passwords and groups from a file at every use. Usage: node provider.mjs CONFIG.json
import { readFileSync } from 'node:fs';
import { createServer as createHttps } from 'node:https';
import { createServer as createHttp } from 'node:http';
import { createRequire } from 'node:module';
import { generateKeyPairSync } from 'node:crypto';

// `npm ci` installs the modules in another folder than this file's.
const require = createRequire(`${process.env.PROVIDER_MODULES}/`);
const { default: Provider } = await import(require.resolve('oidc-provider'));

const config = JSON.parse(readFileSync(process.argv[2]));
const people = () => JSON.parse(readFileSync(config.people));

const findAccount = (_, id) => {
  const person = people()[id];
  return person && {
    accountId: id,
    claims: () => ({ sub: id, preferred_username: person.name, email: person.email, email_verified: true, groups: person.groups }),
  };
};

const key = generateKeyPairSync('rsa', { modulusLength: 2048 }).privateKey.export({ format: 'jwk' });
const provider = new Provider(config.issuer, {
  clients: config.clients,
  jwks: { keys: [{ ...key, use: 'sig', alg: 'RS256', kid: 'first' }] },
  cookies: { keys: ['a scenario has no secrets'] },
  claims: { openid: ['sub'], profile: ['preferred_username'], email: ['email', 'email_verified'], groups: ['groups'] },
  // Put the claims of scopes into the ID token as well, unless the scenario wants them at the UserInfo endpoint only.
  conformIdTokenClaims: config.claims_at_userinfo ?? false,
  scopes: ['openid', 'profile', 'email', 'groups', 'offline_access'],
  features: {
    devInteractions: { enabled: false },
    deviceFlow: { enabled: true },
    backchannelLogout: { enabled: true },
    rpInitiatedLogout: { enabled: true },
    revocation: { enabled: true },
  },
  issueRefreshToken: async () => config.refresh_tokens ?? true,
  rotateRefreshToken: true,
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  findAccount,
  // Users are not asked for consent: provider and authority belong to the same organisation.
  loadExistingGrant: async (ctx) => {
    const grant = new ctx.oidc.provider.Grant({ clientId: ctx.oidc.client.clientId, accountId: ctx.oidc.session.accountId });
    grant.addOIDCScope([...ctx.oidc.requestParamScopes].join(' '));
    await grant.save();
    return grant;
  },
  ttl: { AccessToken: 3600, IdToken: 3600, Interaction: 600, Session: 86400, Grant: 86400, RefreshToken: 86400, DeviceCode: 600 },
});
provider.on('server_error', (_, error) => console.error('server_error', error));
for (const event of ['authorization.error', 'grant.error', 'backchannel.error', 'device_authorization.error']) {
  provider.on(event, (_, error) => console.error(event, error.error_description ?? error.message, error.error_detail ?? ''));
}
provider.on('backchannel.success', () => console.log('logged out by the back channel'));

const page = (uid, said) => `<!doctype html><html lang="en"><title>Log in</title><h1>Log in</h1><p role="alert">${said}</p>
<form method="post" action="/interaction/${uid}"><label>Name <input name="login" autofocus></label>
<label>Password <input name="password" type="password"></label><button type="submit">Log in</button></form></html>`;

const answer = (response, status, text) => {
  response.writeHead(status, { 'content-type': 'text/html; charset=utf-8' });
  response.end(text);
};

const interact = async (request, response) => {
  const { uid, prompt } = await provider.interactionDetails(request, response);
  // oidc-provider always asks users for consent to native clients; here consent is given without a prompt.
  if (prompt.name === 'consent') return provider.interactionFinished(request, response, { consent: {} }, { mergeWithLastSubmission: true });
  if (request.method !== 'POST') return answer(response, 200, page(uid, ''));
  let body = '';
  for await (const chunk of request) body += chunk;
  const form = new URLSearchParams(body);
  const person = people()[`${form.get('login')}-at-the-provider`];
  if (!person || person.password !== form.get('password')) return answer(response, 401, page(uid, 'Wrong name or password'));
  return provider.interactionFinished(request, response, { login: { accountId: `${form.get('login')}-at-the-provider` } }, { mergeWithLastSubmission: false });
};

const serve = provider.callback();
const handler = async (request, response) => {
  try {
    if (request.url.startsWith('/interaction/')) return await interact(request, response);
    return serve(request, response);
  } catch (error) {
    console.error('failed', error);
    return answer(response, 500, 'failed');
  }
};
const server = config.certificate
  ? createHttps({ cert: readFileSync(config.certificate), key: readFileSync(config.key) }, handler)
  : createHttp(handler);
server.listen(config.port, config.address, () => console.log(`the provider listens on port ${server.address().port}`));
